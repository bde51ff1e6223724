// Writes the trace of a short run that follows a life cycle: one epoch of two batches, with what the reader chose.
// A test holds that camshaft.hooks_core.check accepts every one of these traces.
"use strict";

const exampleRun = (() => {
  const { data } = lifeCycles;
  const NUM_BATCHES = 2;

  /** The parts that a usual run on one process does not have, by the words of the life cycle. */
  const NOT_TAKEN = new Set([
    "if several processes run and have not joined",
    "if several processes run",
    "if apex is used",
    "if a checkpoint is loaded",
    "if weights are restored",
    "if the training loader still has its first name",
    "if a progress bar is drawn",
    "if it is called anyway",
    "if an update follows anyway",
    "if they are applied anyway",
    "if batches are moved ahead",
    "if loaders are reloaded",
    "if validation is due at the end of the epoch, up to 1.3",
    "since 0.9",
  ]);

  /** Rounds that a usual run repeats otherwise than once; a function gets the writer. */
  const ROUNDS = {
    "training batch": () => NUM_BATCHES,
    "test batch": () => NUM_BATCHES,
    "predict batch": () => NUM_BATCHES,
    "validation loader": () => 2,
    "test loader": () => 2,
    "predict loader": () => 2,
    optimizer: (writer) => (writer.has("optimizers") ? 2 : 1),
    "split of the batch": (writer) => (writer.has("splits") ? 2 : 1),
    "split of the batch (a whole batch is one)": (writer) => (writer.has("splits") ? 2 : 1),
    "further evaluation, by an optimizer that asks for it": () => 0,
    "part of the set-up that the module overrides": () => 0,
    "requested checkpoint": (writer) => (writer.isAtEndOfEpoch() ? 1 : 0),
    "scheduler that is due": (writer) => (writer.isAtEndOfEpoch() ? 1 : 0),
  };
  const BY_HAND = "call by the module, in its own order";
  /** The order in which a module that optimizes by hand usually calls: the options of the life cycle, by position. */
  const ORDER_BY_HAND = [3, 0, 1, 2];

  /** Return one receiver of each kind that implements all it may, and a callback that monitors. */
  function participants(era, isManual) {
    const named = [["callback", "Callback"], ["callback", "Monitor"], ["data", "Data"], ["module", "Module"], ["strategy", "Strategy"]];
    return named.map(([kind, name]) => {
      const isIn = (hook) => lifeCycles.receiversIn(hook, era).includes(kind) && Object.hasOwn(data.hooks[hook].in, era);
      const hooks = Object.keys(data.hooks).filter(isIn);
      const afterModule = name === "Monitor" && hooks.includes("on_train_epoch_end") ? ["on_train_epoch_end"] : [];
      return { name, kind, hooks, after_module: afterModule, manual: kind === "module" && isManual, version: null };
    }).filter((one) => one.hooks.length);
  }

  class Writer {
    constructor({ era, optimization, variations }) {
      this.era = era;
      this.optimization = optimization;
      this.variations = variations;
      this.participants = participants(era, optimization === "manual");
      this.events = [];
      this.groups = []; // rounds, each with the first and the last of its events
      this.rounds = []; // the rounds that are open: {each, index}
      this.conditions = new Set();
    }

    has(variation) {
      return this.variations.has(variation);
    }

    round(each) {
      return this.rounds.find((one) => one.each === each)?.index;
    }

    isAtEndOfEpoch() {
      return this.round("training epoch") !== undefined && this.round("training batch") === undefined;
    }

    write(node) {
      switch (node.is) {
        case "call":
          return this.emit(node);
        case "within":
          return this.emit(node, () => this.write(node.body));
        case "seq":
          return node.items.forEach((item) => this.write(item));
        case "either":
          return this.write(node.items[this.chosen(node)]);
        case "repeat":
          return this.repeat(node);
        case "maybe":
          return this.takes(node) ? this.write(node.body) : undefined;
        case "if":
          return this.conditions.has(node.condition) !== Boolean(node.unless) ? this.write(node.body) : undefined;
        default:
          return node.clear ? this.conditions.delete(node.condition) : this.conditions.add(node.condition);
      }
    }

    takes(node) {
      if (node.leftOutIf !== undefined) return !this.conditions.has(node.leftOutIf);
      if (node.when === "if batches are split along time") return this.has("splits");
      if (!node.when || NOT_TAKEN.has(node.when)) return false;
      if (node.when === "if a sanity check is asked for") return this.has("sanity-check");
      if (node.when === "if validation is due") return this.round("training batch") === NUM_BATCHES - 1;
      return true;
    }

    chosen(node) {
      if (this.round(BY_HAND) !== undefined) return ORDER_BY_HAND[this.round(BY_HAND)];
      const isOpen = this.has("accumulation") && this.round("training batch") < NUM_BATCHES - 1;
      return Math.max(0, isOpen ? node.items.findIndex((item) => item.label === "where gradients are only accumulated") : 0);
    }

    repeat(node) {
      const count = node.each === BY_HAND ? ORDER_BY_HAND.length : (ROUNDS[node.each] || (() => 1))(this);
      for (let index = 0; index < count; index += 1) {
        if (node.until !== undefined && this.conditions.has(node.until)) return;
        const first = this.events.length;
        this.rounds.push({ each: node.each, index });
        this.write(node.body);
        this.rounds.pop();
        const isShown = node.each !== BY_HAND && (count > 1 || / (epoch|batch)$/.test(node.each));
        const name = node.each.replace(/ \(.*/, "");
        if (isShown && this.events.length > first) {
          this.groups.push({ name: `${name} ${index}`, first, last: this.events.length - 1, depth: this.rounds.length });
        }
      }
    }

    emit(call, body = () => undefined) {
      for (const one of traceCheck.receiversAmong(this.participants, call.hook, this.era)) {
        const event = { hook: call.hook, receiver: one.name, receiver_kind: one.kind };
        this.events.push({ kind: "enter", ...event, arguments: this.argumentsOf(call.hook) });
        body();
        const happens = call.sets !== undefined && (call.on === undefined || this.hasNoLoss(call));
        this.events.push({ kind: "exit", ...event, result: this.resultOf(call, happens) });
        if (happens) this.conditions.add(call.sets);
      }
    }

    hasNoLoss(call) {
      return call.on === "None" && this.has("skipped-losses") && this.round("training batch") === 0;
    }

    resultOf(call, happens) {
      if (happens) return call.on || "None";
      if (call.hook === "configure_optimizers") return this.optimization === "none" ? "None" : "SGD";
      return data.hooks[call.hook].returns === "ignored" || call.on === "-1" ? "None" : "...";
    }

    /** Return the arguments of a call that a reader of the run may want to see. */
    argumentsOf(hook) {
      const inEra = data.hooks[hook].in[this.era];
      const names = new Set([...inEra.arguments[inEra.receivers.at(-1)], ...inEra.optional]);
      const indexOf = (ending) => this.rounds.findLast((one) => one.each.endsWith(ending))?.index;
      const splits = indexOf("split of the batch") ?? indexOf("(a whole batch is one)");
      const values = {
        epoch: indexOf("training epoch"),
        batch_idx: indexOf(" batch"),
        optimizer_idx: this.has("optimizers") ? indexOf("optimizer") : undefined,
        dataloader_idx: indexOf(" loader"),
        hiddens: this.has("splits") && splits === 0 ? "None" : undefined,
        stage: hook === "setup" || hook === "teardown" ? `'${this.verb}'` : undefined,
      };
      const shown = Object.entries(values).filter(([name, value]) => names.has(name) && value !== undefined);
      return shown.map(([name, value]) => `${name}=${value}`).join(", ");
    }
  }

  /** Return the trace of a short run, with the groups that its time line shows. */
  function write(node, { verb, era, optimization, variations }) {
    const writer = new Writer({ era, optimization, variations });
    writer.verb = verb;
    writer.write(node);
    return { era: era || null, participants: writer.participants, events: writer.events, groups: writer.groups };
  }

  /** Return a trace as the text of a file that Trace.load reads. */
  function asText(trace) {
    const head = { format: "camshaft-trace-1", era: trace.era, participants: trace.participants.length };
    return [head, ...trace.participants, ...trace.events].map((line) => `${JSON.stringify(line)}\n`).join("");
  }

  return { write, asText, NOT_TAKEN, ROUNDS };
})();
