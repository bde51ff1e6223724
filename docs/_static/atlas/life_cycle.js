// Life cycles as the page's data holds them: what they are without some variations, and the rows of their tree.
// The same as camshaft.hooks_core.grammar (nodes.without, nodes.keep, drawing.tree); a test compares them.
"use strict";

const lifeCycles = (() => {
  const data = JSON.parse(document.getElementById("atlas-data").textContent);
  for (const node of data.nodes) {
    // A node's parts stand before it, by number.
    if (node.items) node.items = node.items.map((number) => data.nodes[number]);
    if (node.body !== undefined) node.body = data.nodes[node.body];
  }
  const NOTHING = { is: "seq", items: [] };
  const EVALUATION_BATCH = /^(validation|test|predict) batch$/;

  /** Return the life cycle of a verb; undefined if there is none. */
  function cycle(verb, era, optimization, zeroGrad) {
    return data.nodes[data.cycles[[verb, era, optimization, zeroGrad].join("|")]];
  }

  /** Return the life cycle in which camshaft runs a receiver of an earlier release; undefined if there is none. */
  function cycleOfVersion(verb, version, moments, optimization, zeroGrad) {
    const key = [verb, version, moments, optimization, zeroGrad].join("|");
    return data.nodes[data.cyclesOfVersions[key]];
  }

  function parts(node) {
    return node.items || (node.body ? [node.body] : []);
  }

  function withParts(node, change) {
    if (node.items) return { ...node, items: node.items.map(change) };
    return node.body ? { ...node, body: change(node.body) } : node;
  }

  /** Return the life cycle of runs without some variations, which are given as a Set. */
  function without(node, leftOut) {
    const change = (part) => without(part, leftOut);
    const isLeftOut = (condition) => condition !== undefined && leftOut.has(data.conditions[condition].variation);
    if (node.is === "if" && isLeftOut(node.condition)) return node.unless ? change(node.body) : NOTHING;
    if (node.is === "maybe" && isLeftOut(node.leftOutIf)) return change(node.body);
    if (node.is === "maybe" && node.isUsual && leftOut.has("rare")) return change(node.body);
    if ((node.is === "maybe" || node.is === "seq") && leftOut.has(node.variation)) return NOTHING;
    if (node.is === "repeat" && leftOut.has(node.variation)) return change(node.body);
    if (node.is === "repeat" && isLeftOut(node.until)) return { ...node, body: change(node.body), until: undefined };
    if (node.is === "either") {
      const kept = node.items.map(change).filter((one) => !isNothing(one));
      return kept.length === 1 && kept[0].is === "seq" ? { is: "seq", items: kept[0].items } : { is: "either", items: kept };
    }
    return withParts(node, change);
  }

  function isNothing(node) {
    return node.is === "seq" && !node.items.length && !node.label && !node.variation;
  }

  /** Return a life cycle with only the hooks for which a function returns true. */
  function keep(node, isKept) {
    if (node.hook && !isKept(node.hook)) return node.body ? keep(node.body, isKept) : NOTHING;
    return withParts(node, (part) => keep(part, isKept));
  }

  /** Return a life cycle in which each evaluation goes through several loaders. */
  function withLoaders(node) {
    const inside = withParts(node, withLoaders);
    return inside.is === "repeat" && EVALUATION_BATCH.test(inside.each)
      ? { is: "repeat", each: `${inside.each.split(" ")[0]} loader`, body: inside }
      : inside;
  }

  function hooksIn(node, found = new Set()) {
    if (node.hook) found.add(node.hook);
    for (const part of parts(node)) hooksIn(part, found);
    return found;
  }

  /** Return the rows of a life cycle's tree: {text, hook, receivers, notes, children}. */
  function rows(node, era) {
    const inside = () => rows(node.body, era);
    switch (node.is) {
      case "call":
        return [hookRow(node.hook, era)];
      case "within": {
        const isOverride = data.hooks[node.hook].kind === "override";
        const note = isOverride ? "encloses what follows, where it is overridden" : "encloses";
        const row = noted(hookRow(node.hook, era), note);
        return [{ ...row, children: inside() }];
      }
      case "seq": {
        const found = node.items.flatMap((item) => rows(item, era));
        return node.label && found.length ? [group(node.label, found)] : found;
      }
      case "either": {
        const found = node.items.flatMap((item) => rows(item, era));
        return found.length ? [group("one of", found)] : [];
      }
      case "repeat": {
        const ends = node.until === undefined ? "" : `, until ${data.conditions[node.until].text}`;
        return under(`for each ${node.each}${ends}`, inside());
      }
      case "maybe":
        return under(node.when || "", inside());
      case "if":
        return under(`${node.unless ? "unless" : "if"} ${data.conditions[node.condition].text}`, inside());
      default:
        return [];
    }
  }

  function hookRow(hook, era) {
    const words = wordsFor(hook, era);
    const row = { text: `${hook}()`, hook, receivers: words, notes: [], children: [] };
    return words.length > receiversIn(hook, era).length ? noted(row, "SPECIAL CASE") : row;
  }

  function wordsFor(hook, era) {
    const inEras = data.hooks[hook].in;
    return (inEras[era] || inEras[""] || Object.values(inEras)[0]).words;
  }

  /** Return the kinds of receivers that a hook has in an era; "" stands for today. */
  function receiversIn(hook, era) {
    return data.moduleOnlyEras.includes(era) ? ["module"] : data.hooks[hook].receivers;
  }

  function group(label, children) {
    return { text: `[${label}]`, receivers: [], notes: [], children };
  }

  function noted(row, note) {
    return { ...row, notes: [...row.notes, note] };
  }

  function under(label, found) {
    if (found.length === 1 && !found[0].text.startsWith("[")) return [noted(found[0], label)];
    return found.length ? [group(label, found)] : [];
  }

  return { data, cycle, cycleOfVersion, without, keep, withLoaders, hooksIn, rows, receiversIn };
})();
