// Reads a trace file and finds where it first departs from the life cycle of its verb.
// The same as camshaft.hooks_core.trace and camshaft.hooks_core.check; a test compares them.
"use strict";

const traceCheck = (() => {
  const { data, cycle, cycleOfVersion } = lifeCycles;
  const FORMAT = "camshaft-trace-1";
  const REPORTS_OF_EXCEPTIONS = ["on_keyboard_interrupt", "on_exception"];
  const PLACES = 2 ** data.conditions.length; // a state and the conditions that hold, as one number

  /** Return the trace that a file holds: {era, participants, events}. Throws an Error if it holds none. */
  function read(text) {
    try {
      const [head, ...lines] = text.split("\n").filter((line) => line.trim()).map((line) => JSON.parse(line));
      if (head.format !== FORMAT) throw new Error(`format ${head.format}`);
      const participants = lines.slice(0, head.participants);
      const events = lines.slice(head.participants);
      const areWhole = participants.every((one) => one.name && one.kind && Array.isArray(one.hooks))
        && events.every((one) => ["enter", "exit"].includes(one.kind) && one.hook && one.receiver && one.receiver_kind);
      if (!areWhole || participants.length !== head.participants) throw new Error("a line is missing or incomplete");
      return { era: head.era, participants, events };
    } catch (error) {
      throw new Error(`The file must hold a trace in the format ${FORMAT}, as Trace.save writes it (${error.message}).`);
    }
  }

  /** Return the verb of a trace: that which its set-up names, or whose hooks it calls. */
  function verbOf(trace) {
    for (const event of trace.events) {
      const named = event.hook === "setup" && /(fit|validate|test|predict)/.exec(event.arguments || "");
      if (named) return named[1];
    }
    const stages = new Set(trace.events.map((event) => data.hooks[event.hook]?.stage));
    const isFit = stages.has("fit") || stages.has("train");
    return isFit ? "fit" : ["test", "predict", "validate"].find((verb) => stages.has(verb)) || "fit";
  }

  /** Return undefined for a trace that follows its verb; else where it departs: {index, got, expected, hook}. */
  function check(trace, verb, zeroGrad = "") {
    const labels = receiversOf(trace.participants, trace.era || "");
    const automaton = new Automaton(cycleOf(trace, verb, zeroGrad), labels);
    try {
      new Walk(trace.events, labels, knownTo(trace)).run(automaton);
    } catch (error) {
      if (error instanceof Departure) return error;
      throw error;
    }
    return undefined;
  }

  function cycleOf(trace, verb, zeroGrad) {
    const optimization = optimizationOf(trace);
    const versions = versionsOf(trace);
    let found;
    if (!versions.length) {
      found = cycle(verb, trace.era || "", optimization, zeroGrad);
    } else {
      const module = versions.find((one) => one.kind === "module");
      const version = module ? release(module.version) : data.eras.at(-1);
      const moments = release((module || versions[0]).version);
      found = cycleOfVersion(verb, version, moments, optimization, zeroGrad);
    }
    if (!found) {
      const whose = trace.era ? `era ${trace.era}` : "this run";
      throw new Error(`There is no order of ${verb} for ${whose}${zeroGrad ? ` with zeroing ${zeroGrad}` : ""}.`);
    }
    return found;
  }

  /** Return the participants with a version, which may call the hooks of any era; none where the trace has an era. */
  function versionsOf(trace) {
    return trace.era ? [] : trace.participants.filter((one) => one.version);
  }

  function release(version) {
    return version.split(".").slice(0, 2).join(".").replace(/^2\.[1-9]\d*$/, "2.1");
  }

  function optimizationOf(trace) {
    if (trace.participants.some((one) => one.manual)) return "manual";
    const chosen = trace.events.filter((one) => one.hook === "configure_optimizers" && one.kind === "exit");
    return chosen.length && chosen.every((one) => one.result === "None") ? "none" : "automatic";
  }

  /** Return a function that tells whether the run's catalogue has a hook. */
  function knownTo(trace) {
    const knowsAll = versionsOf(trace).length > 0;
    return (hook) =>
      Object.hasOwn(data.hooks, hook) && (knowsAll || Object.hasOwn(data.hooks[hook].in, trace.era || ""));
  }

  /** Return a function that gives the labels of a hook's receivers in the order in which it reaches them. */
  function receiversOf(participants, era) {
    return (hook) => (isFree(hook) ? [] : receiversAmong(participants, hook, era).map((one) => `${one.kind}:${one.name}`));
  }

  /** Return those among some participants that a hook reaches, in the order in which it does. */
  function receiversAmong(participants, hook, era) {
    const kinds = lifeCycles.receiversIn(hook, era);
    const found = participants.filter((one) => one.hooks.includes(hook) && kinds.includes(one.kind));
    const rank = (one) => data.ranks[one.kind][(one.after_module || []).includes(hook) ? 1 : 0];
    found.sort((one, other) => rank(one) - rank(other));
    return data.hooks[hook].kind === "event" ? found : found.slice(0, 1);
  }

  function isFree(hook) {
    return ["provide", "state"].includes(data.hooks[hook].kind);
  }

  class Departure extends Error {
    constructor(index, event, expected) {
      super(`trace[${index}] departs`);
      const by = event?.raised ? ` by ${event.raised}` : "";
      this.index = index;
      this.expected = expected.map((one) => (typeof one === "string" ? one : inWords(one)));
      this.got = event ? inWords(stepOf(event)) + by : "the end of the trace";
      const missing = expected.at(-1);
      this.hook = event ? event.hook : missing?.hook;
      this.missing = missing?.hook;
    }
  }

  function labelOf(event) {
    return `${event.receiver_kind}:${event.receiver}`;
  }

  function stepOf(event) {
    return { kind: event.kind, hook: event.hook, label: labelOf(event) };
  }

  function endOf(event) {
    return { ...stepOf(event), kind: "exit" };
  }

  function inWords(step) {
    return `${step.kind === "exit" ? "the end of " : ""}${step.hook} on ${step.label}`;
  }

  function keyOf(step) {
    return `${step.kind} ${step.hook} ${step.label}`;
  }

  /** A walk through a trace along a life cycle, up to the first departure. */
  class Walk {
    constructor(events, labels, isKnown) {
      this.events = events;
      this.labels = labels;
      this.isKnown = isKnown;
      this.open = [];
      this.tornDown = new Set();
      this.raised = undefined;
    }

    run(automaton) {
      let at = automaton.start;
      for (const [index, event] of this.events.entries()) {
        if (this.leavesLifeCycle(index, event)) return this.runAfterException(index);
        const isFreeHook = this.track(index, event);
        if (event.raised && !isFreeHook) this.raised = event;
        else if (!isFreeHook) at = this.move(automaton, at, index, event);
      }
      const length = this.events.length;
      if (this.open.length) this.depart(length, [endOf(this.open.at(-1))]);
      if (this.raised) return this.runAfterException(length);
      if (!automaton.isEnd(at)) this.depart(length, automaton.expected(at));
    }

    /** Return whether what follows an exception begins here; it may have been raised in a hook or elsewhere. */
    leavesLifeCycle(index, event) {
      if (!this.raised) {
        return event.kind === "enter" && REPORTS_OF_EXCEPTIONS.includes(event.hook) && !this.open.length;
      }
      if (this.open.length) {
        const last = this.open.at(-1);
        if (event.kind === "enter" || !event.raised) {
          this.depart(index, [`${this.raised.raised} to leave ${last.hook} on ${labelOf(last)}`]);
        }
        return false;
      }
      return event.kind === "enter" && !this.isFreeAt(index, event);
    }

    runAfterException(first) {
      const tornDown = new Set(this.tornDown);
      const labels = (hook) => this.labels(hook).filter((one) => hook !== "teardown" || !tornDown.has(one));
      const node = data.nodes[tornDown.size ? data.afterTearingDown : data.afterAnException];
      const tail = new Automaton(node, labels);
      let at = tail.start;
      for (let index = first; index < this.events.length; index += 1) {
        if (!this.track(index, this.events[index])) at = this.move(tail, at, index, this.events[index]);
      }
      if (!tail.isEnd(at)) this.depart(this.events.length, tail.expected(at));
    }

    /** Keep the calls that are open; returns whether the event is free. */
    track(index, event) {
      const isFreeHook = this.isFreeAt(index, event);
      if (event.kind === "enter") {
        this.open.push(event);
        if (event.hook === "teardown") this.tornDown.add(labelOf(event));
        return isFreeHook;
      }
      const last = this.open.at(-1);
      if (!last || last.hook !== event.hook || labelOf(last) !== labelOf(event)) {
        this.depart(index, last ? [endOf(last)] : ["a call to begin"]);
      }
      this.open.pop();
      return isFreeHook;
    }

    isFreeAt(index, event) {
      if (!this.isKnown(event.hook)) this.depart(index, ["a hook of the catalogue"]);
      return isFree(event.hook);
    }

    move(automaton, at, index, event) {
      const there = automaton.move(at, stepOf(event), event.result || "");
      if (there === undefined) {
        this.depart(index, [...automaton.expected(at), ...(automaton.isEnd(at) ? ["the end of the run"] : [])]);
      }
      return there;
    }

    depart(index, expected) {
      throw new Departure(index, this.events[index], expected);
    }
  }

  /** Accepts the traces that follow a life cycle. It follows all possibilities at once. */
  class Automaton {
    constructor(node, labels) {
      this.labels = labels;
      this.free = []; // by state: ways without a step, open if the bits of `mask` equal `value`
      this.taken = []; // by state: steps, each with where it leads and the call that it belongs to
      this.closures = new Map();
      const first = this.state();
      this.last = this.build(node, first);
      this.start = this.closure([first * PLACES]);
    }

    /** Return the places to which a step leads; undefined if it is not allowed there. */
    move(at, step, result) {
      const key = keyOf(step);
      const reached = [];
      for (const place of at) {
        const conditions = place % PLACES;
        for (const { target, call } of this.taken[Math.floor(place / PLACES)].get(key)?.ways || []) {
          reached.push(target * PLACES + conditionsAfter(call, conditions, result));
        }
      }
      return reached.length ? this.closure(reached) : undefined;
    }

    isEnd(at) {
      return at.some((place) => Math.floor(place / PLACES) === this.last);
    }

    /** Return the steps that are allowed at some places. */
    expected(at) {
      const found = new Map();
      for (const place of at) {
        for (const [key, { step }] of this.taken[Math.floor(place / PLACES)]) found.set(key, step);
      }
      return [...found.values()];
    }

    state() {
      this.free.push([]);
      this.taken.push(new Map());
      return this.free.length - 1;
    }

    /** Return all places that can be reached without a step, in order. */
    closure(places) {
      const key = [...new Set(places)].sort((one, other) => one - other).join();
      if (!this.closures.has(key)) this.closures.set(key, this.reachable(places));
      return this.closures.get(key);
    }

    reachable(places) {
      const found = new Set(places);
      const waiting = [...found];
      while (waiting.length) {
        const place = waiting.pop();
        const conditions = place % PLACES;
        for (const way of this.free[Math.floor(place / PLACES)]) {
          if ((conditions & way.mask) !== way.value) continue;
          const next = way.target * PLACES + ((conditions & ~way.clears) | way.sets);
          if (!found.has(next)) waiting.push(next);
          found.add(next);
        }
      }
      const matters = (state) => this.taken[state].size > 0 || state === this.last;
      return [...found].filter((place) => matters(Math.floor(place / PLACES))).sort((one, other) => one - other);
    }

    /** Add a node's states after the state `at`; returns the state in which it ends. */
    build(node, at) {
      switch (node.is) {
        case "call":
          return this.emit(at, node);
        case "within":
          return this.labels(node.hook).length ? this.emit(at, { hook: node.hook }, node.body) : this.build(node.body, at);
        case "seq":
          return node.items.reduce((state, item) => this.build(item, state), at);
        case "repeat": {
          const start = this.link(at);
          const end = this.build(node.body, this.link(start, undefined, { mask: bit(node.until) }));
          this.link(end, start);
          return this.link(node.least ? end : start);
        }
        case "maybe": {
          const end = this.link(this.build(node.body, at));
          return this.link(at, end, { mask: bit(node.leftOutIf), value: bit(node.leftOutIf) });
        }
        case "either": {
          const ends = node.items.map((item) => this.build(item, this.link(at)));
          const last = this.state();
          for (const end of ends) this.link(end, last);
          return last;
        }
        case "if": {
          const mask = bit(node.condition);
          const inside = this.link(at, undefined, { mask, value: node.unless ? 0 : mask });
          const end = this.link(this.build(node.body, inside));
          return this.link(at, end, { mask, value: node.unless ? mask : 0 });
        }
        default: {
          const one = bit(node.condition);
          return this.link(at, undefined, node.clear ? { clears: one } : { sets: one });
        }
      }
    }

    link(at, target = this.state(), facts = {}) {
      this.free[at].push({ target, mask: 0, value: 0, sets: 0, clears: 0, ...facts });
      return target;
    }

    emit(at, call, body) {
      let state = at;
      for (const label of this.labels(call.hook)) {
        const inside = this.step(state, { kind: "enter", hook: call.hook, label }, { hook: call.hook });
        const end = body ? this.build(body, inside) : inside;
        state = this.step(end, { kind: "exit", hook: call.hook, label }, call);
      }
      return state;
    }

    step(at, step, call) {
      const target = this.state();
      const key = keyOf(step);
      if (!this.taken[at].has(key)) this.taken[at].set(key, { step, ways: [] });
      this.taken[at].get(key).ways.push({ target, call });
      return target;
    }
  }

  function bit(condition) {
    return condition === undefined ? 0 : 1 << condition;
  }

  function conditionsAfter(call, conditions, result) {
    const kept = result === "None" ? conditions : conditions & ~bit(call.clears);
    return call.on === undefined || call.on === result ? kept | bit(call.sets) : kept;
  }

  return { read, verbOf, check, receiversAmong };
})();
