"""The look of the timeline's report: what does not depend on the numbers."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --ground: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #647084; --line: #e2e6ec; --hover: #f0f3f8;
  --callback: #3f76d8; --data: #a9741a; --module: #17895a; --strategy: #8656c9; --loop: #8d98a8; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #12161c; --card: #1a2029; --ink: #e3e8ef; --muted: #95a1b3; --line: #2b3442; --hover: #222a36;
  --callback: #6c9cf0; --data: #d9a04a; --module: #45b985; --strategy: #b18be8; --loop: #77839a; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 64px; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
header { position: sticky; top: 0; z-index: 3; background: var(--card); border-bottom: 1px solid var(--line); }
header > div, main { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header > div { display: flex; align-items: center; gap: 20px; min-height: 52px; flex-wrap: wrap; }
h1 { font-size: 16px; margin: 0; }
header span { color: var(--muted); }
nav { margin-left: auto; display: flex; gap: 6px; }
nav a { color: var(--ink); text-decoration: none; padding: 3px 12px; border: 1px solid var(--line);
  border-radius: 99px; }
nav a:hover { background: var(--hover); }
h2 { font-size: 20px; margin: 28px 0 12px; }
h2 small { color: var(--muted); font-weight: 400; font-size: 14px; margin-left: 8px; }
h3 { font-size: 14px; margin: 0 0 2px; }
p { color: var(--muted); margin: 0 0 10px; }
section.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px;
  margin-bottom: 16px; }
.scroll { overflow-x: auto; }
.facts { display: flex; flex-wrap: wrap; gap: 12px; margin-bottom: 16px; }
.facts div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 16px;
  min-width: 150px; flex: 1; }
.facts b { display: block; font-size: 20px; font-weight: 600; }
.facts i { color: var(--muted); font-style: normal; font-size: 12px; }
.split { display: flex; height: 16px; border-radius: 5px; overflow: hidden; margin: 4px 0 8px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--muted); font-size: 12.5px; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 3px; margin-right: 7px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 10px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { color: var(--muted); font-weight: 500; font-size: 12px; }
thead th[data-sort] { cursor: pointer; }
thead th[aria-sort=descending]::after { content: " \\2193"; }
thead th[aria-sort=ascending]::after { content: " \\2191"; }
tbody tr:hover { background: var(--hover); }
tbody tr:last-child td { border-bottom: 0; }
th.text, td.text { text-align: left; }
td u { text-decoration: none; color: var(--muted); display: inline-block; width: 22px; text-align: left;
  margin-left: 3px; font-size: 12px; }
td.bar { width: 22%; min-width: 130px; }
.bar span { display: block; height: 9px; border-radius: 3px; min-width: 1px; }
.bar .track { background: var(--line); width: 100%; display: flex; overflow: hidden; }
.bar .track span { border-radius: 0; }
.callback { background: var(--callback); } .data { background: var(--data); } .module { background: var(--module); }
.strategy { background: var(--strategy); } .loop { background: var(--loop); }
code { font: 12.5px/1.4 ui-monospace, monospace; }
.part { font-style: italic; }
.who { color: var(--muted); }
.tree td { border-bottom: 0; padding-top: 2.5px; padding-bottom: 2.5px; }
.tree td.text:first-child { padding-left: 10px; }
.tree .rail { display: inline-block; width: 20px; border-left: 1px solid var(--line); margin-left: 6px;
  height: 25px; margin-top: -3px; margin-bottom: -5px; vertical-align: middle; }
.tree tr.sub .who { font-size: 12.5px; }
footer { color: var(--muted); padding: 4px 0 32px; font-size: 12.5px; }
"""

SCRIPT = """
document.querySelectorAll("th[data-sort]").forEach(head => head.addEventListener("click", () => {
  const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
  const down = head.getAttribute("aria-sort") !== "descending";
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const value = row => { const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
  const order = (a, b) => { const x = value(a), y = value(b);
    return typeof x === "number" ? x - y : x < y ? 1 : x > y ? -1 : 0; };
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
}));
"""
