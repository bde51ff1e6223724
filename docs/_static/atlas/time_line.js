// Draws a trace as a time line: a lane for each receiver, a column for each call of a hook, from left to right.
"use strict";

const timeLine = (() => {
  const COLUMN = 22;
  const LANE = 28;
  const LETTER = 6.2; // the width of a letter of the hooks' names, which stand at an angle of 60 degrees
  const GROUP = 20;
  const MAX_COLUMNS = 300; // those around the departure, or the first ones
  const SVG = "http://www.w3.org/2000/svg";

  function make(tag, attributes, ...children) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /** Return the columns of a trace: neighbouring calls of one hook, each with its lane and the event that begins it. */
  function columnsOf(trace) {
    const lanes = new Map(trace.participants.map((one, number) => [`${one.kind}:${one.name}`, number]));
    const columns = [];
    const open = [];
    for (const [index, event] of trace.events.entries()) {
      if (event.kind === "exit") {
        const call = open.pop();
        if (call) call.last = columns.length - 1;
        continue;
      }
      const lane = lanes.get(`${event.receiver_kind}:${event.receiver}`);
      const call = { lane, index, first: 0, last: 0 };
      const column = columns.at(-1);
      const goesOn = column?.hook === event.hook && column.depth === open.length
        && trace.events[index - 1].kind === "exit" && column.calls.every((one) => one.lane !== lane);
      if (goesOn) column.calls.push(call);
      else columns.push({ hook: event.hook, arguments: event.arguments || "", depth: open.length, calls: [call] });
      call.first = call.last = columns.length - 1;
      open.push(call);
    }
    return columns;
  }

  /** Return the part of a time line that is drawn: [first column, end, column of the departure]. */
  function windowOf(columns, departure) {
    const begins = (column) => column.calls[0].index;
    let at = departure === undefined ? -1 : columns.findLastIndex((column) => begins(column) <= departure);
    if (at < 0 && departure !== undefined) at = 0;
    const first = at < 0 ? 0 : Math.max(0, Math.min(at - MAX_COLUMNS / 2, columns.length - MAX_COLUMNS));
    return [first, Math.min(columns.length, first + MAX_COLUMNS), at];
  }

  /** Return the element of a trace's time line. */
  function draw(trace, { hook, receiver, departure, onPoint, onChoose }) {
    const columns = columnsOf(trace);
    const [first, end, departs] = windowOf(columns, departure);
    const shown = columns.slice(first, end);
    const groups = placedGroups(trace.groups || [], columns, first, end);
    const depth = Math.max(0, ...groups.map((group) => group.row + 1));
    const longest = LETTER * Math.max(0, ...shown.map((column) => column.hook.length));
    const head = Math.ceil(longest * 0.87) + 20;
    const foot = head + trace.participants.length * LANE;
    const size = { width: Math.ceil(shown.length * COLUMN + longest * 0.5), height: foot + depth * GROUP + 8 };
    const svg = make("svg", { ...size, viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": "Time line" });
    svg.append(...trace.participants.map((one, lane) => laneLine(one, head + lane * LANE + LANE / 2, size.width, receiver)));
    svg.append(...groups.map((group) => groupBar(group, foot)));
    shown.forEach((column, number) => {
      const facts = { isChosen: column.hook === hook, departs: first + number === departs, head, foot, first, receiver, trace };
      const drawn = columnOf(column, number, facts);
      drawn.addEventListener("mouseenter", () => onPoint(column.hook));
      drawn.addEventListener("mouseleave", () => onPoint(""));
      drawn.addEventListener("click", () => onChoose(column.hook));
      svg.append(drawn);
    });
    return framed(svg, head, trace, shown.length < columns.length ? [first, end, columns.length] : undefined);
  }

  function laneLine(participant, y, width, receiver) {
    const isFaint = receiver && receiver !== participant.kind;
    return make("line", { x1: 0, x2: width, y1: y, y2: y, class: isFaint ? "lane faint" : "lane" });
  }

  /** Return the groups in the drawn part, each in the first row below the lanes in which it has room. */
  function placedGroups(groups, columns, first, end) {
    const starts = columns.map((column) => column.calls[0].index);
    const columnAt = (index) => starts.findLastIndex((start) => start <= index);
    const depths = [...new Set(groups.map((group) => group.depth))].sort((one, other) => one - other);
    return groups
      .map((group) => ({ ...group, row: depths.indexOf(group.depth), from: columnAt(group.first), to: columnAt(group.last) }))
      .filter((group) => group.to >= first && group.from < end)
      .map((group) => ({ ...group, from: group.from - first, to: Math.min(group.to, end - 1) - first }));
  }

  function groupBar({ name, row, from, to }, foot) {
    const y = foot + row * GROUP + 3;
    const width = (to - from + 1) * COLUMN - 4;
    const fits = name.length * 6.6 < width;
    const text = fits ? name : name.replace(/^\w+ /, "");
    return make("g", { class: "group" },
      make("rect", { x: from * COLUMN + 2, y, width, height: GROUP - 4, rx: 3 }),
      ...(text.length * 6.6 < width ? [make("text", { x: from * COLUMN + 8, y: y + GROUP - 8.5 }, text)] : []),
      make("title", {}, name));
  }

  function columnOf(column, number, { isChosen, departs, head, foot, first, receiver, trace }) {
    const x = number * COLUMN;
    const names = ["column", isChosen && "chosen", departs && "departs"].filter(Boolean).join(" ");
    const calls = column.calls.map((call, order) => {
      const cx = x + COLUMN / 2 + (column.calls.length > 1 ? (order / (column.calls.length - 1) - 0.5) * (COLUMN - 10) : 0);
      return { ...call, cx, cy: head + call.lane * LANE + LANE / 2 };
    });
    const receivers = calls.map((call) => trace.participants[call.lane].name).join(", ");
    return make("g", { class: names, "data-hook": column.hook },
      make("title", {}, `${column.hook}(${column.arguments}) on ${receivers}`),
      make("rect", { class: "area", x, y: head - 4, width: COLUMN, height: foot - head + 4, rx: 4 }),
      make("text", { class: "name", transform: `translate(${x + COLUMN / 2 + 3} ${head - 8}) rotate(-60)` }, column.hook),
      ...calls.filter((call) => call.last > call.first).map((call) => span(call, first, trace)),
      make("polyline", { points: calls.map((call) => `${call.cx},${call.cy}`).join(" ") }),
      ...calls.map((call) => dot(call, trace, receiver)));
  }

  function dot(call, trace, receiver) {
    const { kind } = trace.participants[call.lane];
    return make("circle", { cx: call.cx, cy: call.cy, r: 4.5, "data-kind": kind, class: receiver && receiver !== kind ? "faint" : undefined });
  }

  /** Return the bar of a call that encloses others. */
  function span(call, first, trace) {
    const right = (call.last - first + 1) * COLUMN;
    return make("rect", { class: "span", "data-kind": trace.participants[call.lane].kind,
      x: call.cx - 7, y: call.cy - 9, width: Math.max(14, right - call.cx + 4), height: 18, rx: 9 });
  }

  /** Return a drawing beside the names of its lanes, which stay where it is scrolled. */
  function framed(svg, head, trace, part) {
    const element = document.createElement("div");
    const names = document.createElement("div");
    names.className = "lanes";
    names.style.paddingTop = `${head}px`;
    for (const one of trace.participants) {
      const name = document.createElement("span");
      name.className = "receiver";
      name.dataset.kind = one.kind;
      name.textContent = name.title = one.name;
      names.append(name);
    }
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.append(svg);
    element.className = "frame";
    element.append(names, scroll);
    if (part) {
      const note = document.createElement("p");
      note.textContent = `Calls ${part[0]} to ${part[1] - 1} of ${part[2]}.`;
      element.append(note);
    }
    return element;
  }

  /** Scroll to the departure, or to the chosen hook if it is out of sight. */
  function reveal(element, scrolled) {
    const scroll = element.querySelector(".scroll");
    scroll.scrollLeft = scrolled;
    const column = scroll.querySelector(".departs") || scroll.querySelector(".chosen");
    if (!column) return;
    const x = Number(column.querySelector(".area").getAttribute("x"));
    const isInSight = x >= scroll.scrollLeft && x + COLUMN <= scroll.scrollLeft + scroll.clientWidth;
    if (!isInSight) scroll.scrollLeft = x - scroll.clientWidth / 2;
  }

  return { draw, reveal, columnsOf };
})();
