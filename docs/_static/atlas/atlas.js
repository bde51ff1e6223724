// The page: controls, search, the time line, the tree, the contract of a hook, and a trace that is dropped onto it.
"use strict";

const hookAtlas = (() => {
  const { data } = lifeCycles;
  const OPTIONS = {
    accumulation: "accumulation",
    optimizers: "several optimizers",
    splits: "tbptt",
    "skipped-losses": "a batch without a loss",
    "sanity-check": "sanity check",
    loaders: "several loaders",
    rare: "rare cases",
  };
  const ZEROING = {
    before_training_step: "before training_step",
    before_backward: "before backward",
    after_optimizer_step: "after the update",
  };
  const OPTIMIZATION = { automatic: "automatic", manual: "manual", none: "no optimizer" };
  const WORDS = { callback: "callback", data: "data module", module: "module", strategy: "strategy" };
  const KINDS = {
    event: "Called on every receiver that implements it.",
    step: "The module's own computation.",
    override: "Replaces what the loop does by default.",
    provide: "Returns something that the run needs; the first receiver that implements it is asked.",
    transform: "Passes a batch through; the first receiver that implements it is asked.",
    state: "Saves or loads a receiver's state.",
  };
  const NUM_SHOWN_BEFORE = 3;
  const MAX_RESULTS = 8;

  const state = { verb: "fit", era: "", optimization: "automatic", zero: "", with: new Set(["sanity-check"]), receiver: "", hook: "" };
  let recorded; // {name, trace, departure, error} of a file
  const parts = {};

  /** Make an element; attributes that are functions are listeners. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.filter((child) => child !== undefined));
    return element;
  }

  // the state, in the address

  function readAddress() {
    const given = new URLSearchParams(decodeURIComponent(location.hash.slice(1)));
    if (![...given.keys()].length) return;
    const choose = (name, known, otherwise) => (known.includes(given.get(name)) ? given.get(name) : otherwise);
    state.era = choose("era", data.eras, "");
    state.verb = choose("verb", data.verbs[state.era], "fit");
    state.optimization = choose("optimization", data.optimizations, "automatic");
    state.zero = choose("zero", data.zeroGrads, "");
    state.with = new Set((given.get("with") || "").split(",").filter((one) => one in OPTIONS));
    state.receiver = choose("receiver", data.receivers, "");
    state.hook = choose("hook", Object.keys(data.hooks), "");
  }

  function writeAddress() {
    const facts = [["verb", state.verb]];
    for (const name of ["era", "zero", "receiver", "hook"]) if (state[name]) facts.push([name, state[name]]);
    if (state.optimization !== "automatic") facts.push(["optimization", state.optimization]);
    if (state.with.size) facts.push(["with", [...state.with].join(",")]);
    history.replaceState(null, "", `#${facts.map((fact) => fact.join("=")).join("&")}`);
  }

  /** Change the state, and what it makes impossible, and show it. */
  function change(facts) {
    Object.assign(state, facts);
    if (!data.verbs[state.era].includes(state.verb)) state.verb = "fit";
    if (!cycle()) state.zero = "";
    if (!cycle()) state.optimization = "automatic";
    if (recorded) checkRecorded();
    writeAddress();
    show();
  }

  function cycle({ verb, era, optimization, zero } = state) {
    return lifeCycles.cycle(verb, era, optimization, zero);
  }

  /** Return the life cycle of the runs that are chosen. */
  function chosenCycle(chosen = state) {
    const leftOut = new Set(["rare", ...data.variations].filter((one) => !chosen.with.has(one)));
    const node = lifeCycles.without(cycle(chosen), leftOut);
    return chosen.with.has("loaders") ? lifeCycles.withLoaders(node) : node;
  }

  /** Return the trace of a short run as it is chosen; the rare cases are in the tree alone. */
  function exampleTrace(chosen = state) {
    const node = chosen.with.has("loaders") ? lifeCycles.withLoaders(cycle(chosen)) : cycle(chosen);
    return exampleRun.write(node, { ...chosen, variations: chosen.with });
  }

  // controls

  function select(name, label, choices, isShown = true) {
    const options = choices.map(([value, text]) => make("option", { value, selected: state[name] === value }, text));
    const change_ = (event) => change({ [name]: event.target.value });
    return isShown ? make("label", {}, make("span", {}, label), make("select", { name, change: change_ }, ...options)) : undefined;
  }

  function showControls() {
    const isFit = state.verb === "fit";
    const hasZeroing = (zero) => cycle({ ...state, zero }) !== undefined;
    const zeroing = data.zeroGrads.filter(hasZeroing).map((one) => [one, ZEROING[one]]);
    const isModern = !data.moduleOnlyEras.includes(state.era);
    parts.controls.replaceChildren(...[
      select("verb", "Verb", data.verbs[state.era].map((one) => [one, one])),
      select("era", "Era", [["", "camshaft"], ...data.eras.map((one) => [one, one])]),
      select("receiver", "Receiver", [["", "all"], ...data.receivers.map((one) => [one, WORDS[one]])]),
      select("optimization", "Optimization", data.optimizations.map((one) => [one, OPTIMIZATION[one]]), isFit && isModern),
      select("zero", "Zeroing", [["", "default"], ...zeroing], isFit && zeroing.length > 1),
    ].filter(Boolean));
    parts.options.replaceChildren(...Object.keys(OPTIONS).filter(makesDifference).map(optionBox));
  }

  function optionBox(option) {
    const toggle = (event) => {
      const chosen = new Set(state.with);
      if (event.target.checked) chosen.add(option);
      else chosen.delete(option);
      change({ with: chosen });
    };
    const box = make("input", { type: "checkbox", name: option, checked: state.with.has(option), change: toggle });
    return make("label", { class: "option" }, box, OPTIONS[option]);
  }

  /** Return whether a run with an option differs from one without. */
  function makesDifference(option) {
    const view = (chosen) => {
      const one = { ...state, with: new Set(chosen) };
      return JSON.stringify([lifeCycles.rows(chosenCycle(one), state.era), exampleTrace(one).events]);
    };
    const others = [...state.with].filter((one) => one !== option);
    return view(others) !== view([...others, option]);
  }

  // search

  function found(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const score = (hook) => {
      const name = hook.toLowerCase();
      if (words.every((word) => name.includes(word))) return name.startsWith(words[0]) ? 0 : 1;
      return words.every((word) => `${name} ${data.hooks[hook].when.toLowerCase()}`.includes(word)) ? 2 : 3;
    };
    const scored = Object.keys(data.hooks).map((hook) => [score(hook), hook]).filter(([one]) => one < 3);
    return scored.sort(([one], [other]) => one - other).map(([, hook]) => hook);
  }

  function showResults() {
    const hooks = found(parts.search.value).slice(0, MAX_RESULTS);
    const isEmpty = parts.search.value.trim() && !hooks.length;
    parts.results.replaceChildren(...hooks.map((hook) => {
      const eras = data.hooks[hook].isCurrent ? "today" : `only in ${data.hooks[hook].eras.join(", ")}`;
      return make("button", { type: "button", click: () => choose(hook) },
        make("b", {}, hook), " ", make("small", {}, eras), make("span", {}, data.hooks[hook].when));
    }), ...(isEmpty ? [make("p", {}, "No hook has this in its name or its moment.")] : []));
  }

  /** Select a hook; where the chosen runs do not call it, choose runs that do. */
  function choose(hook) {
    parts.search.value = "";
    showResults();
    const place = placeOf(hook);
    change({ ...place, hook });
    document.querySelector("#atlas .tree [aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  function placeOf(hook) {
    const calls = (chosen) => cycle(chosen) && lifeCycles.hooksIn(chosenCycle(chosen)).has(hook);
    if (calls(state)) return {};
    const options = [state.with, ...Object.keys(OPTIONS).map((one) => new Set([...state.with, one]))];
    for (const era of new Set([state.era, "", ...[...data.eras].reverse()])) {
      for (const verb of data.verbs[era]) {
        for (const chosen of options) {
          const place = { verb, era, optimization: "automatic", zero: "", with: chosen, receiver: "" };
          if (calls(place)) return place;
        }
      }
    }
    return {};
  }

  // the tree

  function showTree() {
    const reaches = (hook) => !state.receiver || lifeCycles.receiversIn(hook, state.era).includes(state.receiver);
    const rows = lifeCycles.rows(lifeCycles.keep(chosenCycle(), reaches), state.era);
    const title = state.era ? `${state.verb} in era ${state.era}` : state.verb;
    const empty = make("p", {}, `No hook of ${title} reaches this receiver.`);
    parts.tree.replaceChildren(make("h2", {}, `Order of ${title}`), rows.length ? branch(rows) : empty);
  }

  function branch(rows) {
    return make("ul", {}, ...rows.map((row) => {
      const below = row.children.length ? branch(row.children) : undefined;
      if (!row.hook) {
        const label = row.text.slice(1, -1);
        return make("li", {}, make("details", { open: true }, make("summary", {}, inCode(label)), below));
      }
      const notes = row.notes.map((note) => make("span", { class: "note" }, inCode(note === "SPECIAL CASE" ? "special case" : note)));
      const kinds = row.receivers.map((words) => make("span", { class: "receiver", "data-kind": kindOf(words) }, words));
      return make("li", {}, make("div", { class: "row" }, hookButton(row.hook), ...kinds, ...notes), below);
    }));
  }

  function kindOf(words) {
    return /^(callbacks|data|module|strategy)/.exec(words)[1].replace("callbacks", "callback");
  }

  function hookButton(hook) {
    const select_ = () => change({ hook });
    const point = () => showContract(hook);
    const isDeparture = recorded?.departure && [recorded.departure.hook, recorded.departure.missing].includes(hook);
    const facts = { type: "button", class: isDeparture ? "hook departs" : "hook", "data-hook": hook };
    const listeners = { click: select_, mouseenter: point, mouseleave: () => showContract(state.hook), focus: point };
    return make("button", { ...facts, ...listeners, "aria-current": state.hook === hook && "true" }, hook);
  }

  /** Return a text in which backquotes make code. */
  function inCode(text) {
    const pieces = text.split("`").map((piece, index) => (index % 2 ? make("code", {}, piece) : piece));
    return make("span", {}, ...pieces);
  }

  // the contract

  function showContract(hook) {
    parts.contract.classList.toggle("is-empty", !hook);
    if (!hook) {
      parts.contract.replaceChildren(make("p", {}, "Point at a hook, or choose one, to see its contract."));
      return;
    }
    const spec = data.hooks[hook];
    const era = Object.hasOwn(spec.in, state.era) ? state.era : Object.keys(spec.in)[0];
    const close = make("button", { type: "button", class: "close", "aria-label": "Close", click: () => change({ hook: "" }) }, "×");
    parts.contract.replaceChildren(
      make("h2", {}, hook, close),
      make("p", {}, inCode(spec.when)),
      ...signatures(hook, spec.in[era], era),
      ...facts(spec, era),
      make("p", {}, make("a", { href: `_generated/${hook}.html` }, "The page of this hook, with an example")),
    );
  }

  function signatures(hook, inEra) {
    const byText = new Map();
    for (const kind of inEra.receivers) {
      const names = [...inEra.arguments[kind], ...inEra.optional.map((name) => `${name}=...`)];
      const text = `${hook}(${["self", ...names].join(", ")})`;
      byText.set(text, [...(byText.get(text) || []), kind]);
    }
    return [...byText].map(([text, kinds]) => {
      const names = kinds.map((kind) => make("span", { class: "receiver", "data-kind": kind }, WORDS[kind]));
      return make("div", { class: "signature" }, ...names, make("pre", {}, text));
    });
  }

  function facts(spec, era) {
    const inEra = spec.in[era];
    const names = new Set(inEra.receivers.flatMap((kind) => [...inEra.arguments[kind], ...inEra.optional]));
    const list = [...names].flatMap((name) => [make("dt", {}, make("code", {}, name)), make("dd", {}, inCode(spec.arguments[name]))]);
    const eras = spec.isCurrent ? ["", ...spec.eras] : spec.eras;
    const buttons = eras.map((one) => make("button", {
      type: "button", class: "era", "aria-current": one === state.era && "true", click: () => change({ era: one }),
    }, one || "camshaft"));
    return [
      list.length ? make("dl", {}, ...list) : undefined,
      make("dl", {},
        make("dt", {}, "Returns"), make("dd", {}, inCode(spec.returns)),
        make("dt", {}, "Receivers"), make("dd", {}, inEra.words.join(", then ")),
        make("dt", {}, "Kind"), make("dd", {}, KINDS[spec.kind], spec.isolated ? " One that raises does not rob the others." : "")),
      make("p", { class: "eras" }, "Eras: ", ...buttons),
    ].filter(Boolean);
  }

  // a recorded trace

  function load(name, text) {
    try {
      const trace = traceCheck.read(text);
      recorded = { name, trace };
      const optimization = trace.participants.some((one) => one.manual) ? "manual" : "automatic";
      change({ era: trace.era || "", verb: traceCheck.verbOf(trace), optimization, zero: "", receiver: "", hook: "" });
      parts.recorded.scrollIntoView({ block: "nearest" });
    } catch (error) {
      recorded = { name, error: error.message };
      show();
    }
  }

  function checkRecorded() {
    if (!recorded.trace) return;
    recorded.error = recorded.departure = undefined;
    try {
      recorded.departure = traceCheck.check(recorded.trace, state.verb, state.zero);
    } catch (error) {
      recorded.error = error.message;
    }
  }

  async function loadFile(file) {
    if (file) load(file.name, await file.text());
  }

  function showRecorded() {
    const pick = make("input", { type: "file", class: "file", id: "atlas-file", change: (event) => loadFile(event.target.files[0]) });
    const buttons = [pick, make("label", { class: "button", for: "atlas-file" }, "Open a trace")];
    if (!recorded) buttons.push(make("button", { type: "button", click: save }, "Save this run as a trace"));
    else buttons.push(make("button", { type: "button", click: () => { recorded = undefined; change({}); } }, "Close the trace"));
    parts.recorded.replaceChildren(make("div", { class: "buttons" }, ...buttons), ...(recorded ? [verdict()] : []));
  }

  function verdict() {
    const { name, trace, departure, error } = recorded;
    if (error) return make("div", { class: "verdict departs", role: "status" }, make("b", {}, name), make("p", {}, error));
    const size = `${trace.events.length} events of ${trace.participants.length} receivers`;
    const head = make("p", {}, make("b", {}, name), `: ${size}.`);
    if (!departure) {
      const text = `It follows the order of ${state.verb}${state.era ? ` in era ${state.era}` : ""}.`;
      return make("div", { class: "verdict follows", role: "status" }, head, make("p", {}, text));
    }
    const first = Math.max(0, departure.index - NUM_SHOWN_BEFORE);
    const before = trace.events.slice(first, departure.index).map((event, offset) => make("li", { value: first + offset },
      `${event.kind} ${event.hook} ${event.receiver_kind}:${event.receiver}`));
    return make("div", { class: "verdict departs", role: "status", "data-index": departure.index },
      head,
      make("p", {}, "It first departs from the order of ", state.verb, " at event ", make("b", {}, String(departure.index)), "."),
      make("dl", {},
        make("dt", {}, "Expected"), make("dd", {}, departure.expected.join("; or ")),
        make("dt", {}, "Got"), make("dd", {}, departure.got)),
      before.length ? make("p", {}, "Before it:") : undefined,
      make("ol", { start: first }, ...before));
  }

  function save() {
    const blob = new Blob([exampleRun.asText(exampleTrace())], { type: "application/json" });
    const link = make("a", { href: URL.createObjectURL(blob), download: `${state.verb}.trace.jsonl` });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function watchDrops() {
    document.addEventListener("dragover", (event) => {
      event.preventDefault();
      parts.root.classList.add("is-dragged-over");
    });
    document.addEventListener("dragleave", () => parts.root.classList.remove("is-dragged-over"));
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      parts.root.classList.remove("is-dragged-over");
      loadFile(event.dataTransfer.files[0]);
    });
  }

  // the page

  function showTimeLine() {
    const trace = recorded?.trace || exampleTrace();
    const title = recorded?.trace ? "Time line of the trace" : "Time line of a short run";
    const drawn = timeLine.draw(trace, {
      hook: state.hook,
      receiver: state.receiver,
      departure: recorded?.departure?.index,
      onPoint: (hook) => showContract(hook || state.hook),
      onChoose: (hook) => change({ hook }),
    });
    const scrolled = parts.timeLine.querySelector(".scroll")?.scrollLeft || 0;
    parts.timeLine.replaceChildren(make("h2", {}, title), drawn);
    timeLine.reveal(drawn, scrolled);
  }

  function show() {
    showControls();
    showRecorded();
    showTimeLine();
    showTree();
    showContract(state.hook);
  }

  function start() {
    parts.root = document.getElementById("atlas");
    for (const name of ["controls", "options", "results", "recorded", "timeLine", "tree", "contract"]) {
      parts[name] = make("div", { class: name.replace("L", "-l") });
    }
    const enter = (event) => { if (event.key === "Enter") choose(found(parts.search.value)[0] || state.hook); };
    const facts = { type: "search", placeholder: "Search a hook: optimizer step, epoch end …", "aria-label": "Search a hook" };
    parts.search = make("input", { ...facts, input: showResults, keydown: enter });
    const searching = make("div", { class: "search" }, parts.search, parts.results);
    const columns = make("div", { class: "columns" }, parts.tree, parts.contract);
    parts.root.append(searching, parts.controls, parts.options, parts.recorded, parts.timeLine, columns);
    watchDrops();
    addEventListener("hashchange", () => { readAddress(); change({}); });
    readAddress();
    change({});
  }

  start();
  return { state, change, choose, load, chosenCycle, exampleTrace };
})();
