#include "precision/report/sections.h"

namespace imago::precision {

namespace {

// Shades change evenly in lightness, so that their order is visible with any colour vision and in grey.
constexpr std::string_view kStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #fbfbfa; --card: #ffffff; --ink: #1c2026; --quiet: #5c6570; --line: #dfe3e8; --grid: #e9ecf0;
  --accent: #0b62a4; --second: #c2540a; --other: #8a939e; --bar: #7fb0d6;
  --h0: #f4f5f6; --h1: #e8f0f7; --h2: #d0e2f0; --h3: #b0cfe6; --h4: #8ab7d8; --h5: #669fc9; --h6: #34739f; --h7: #225a87; --h8: #124069;
  --low: #1c2026; --mid: #10141a; --high: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #13161a; --card: #1a1e24; --ink: #e7eaee; --quiet: #9aa4b0; --line: #2d343d; --grid: #262c34;
    --accent: #6cb6f0; --second: #f0a060; --other: #7c8794; --bar: #35648c;
    --h0: #1d2127; --h1: #1f2c39; --h2: #223a4e; --h3: #264a66; --h4: #2c5d80; --h5: #4587b1; --h6: #639fc4; --h7: #8bbcd9; --h8: #b9dcef;
    --low: #e7eaee; --mid: #10141a; --high: #10141a;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif;
}
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header { margin-bottom: 2rem; }
.eyebrow { margin: 0 0 .5rem; color: var(--quiet); font-size: .8rem; letter-spacing: .08em; text-transform: uppercase; }
h1 { margin: 0; font-size: clamp(1.6rem, 1.1rem + 2.4vw, 2.4rem); line-height: 1.2; letter-spacing: -.015em; font-weight: 650; overflow-wrap: anywhere; }
h2 { margin: 0 0 .4rem; font-size: 1.25rem; letter-spacing: -.005em; font-weight: 620; }
.subtitle { margin: .6rem 0 0; color: var(--quiet); overflow-wrap: anywhere; }
.summary { margin: 1.2rem 0 0; font-size: 1.15rem; line-height: 1.5; max-width: 46rem; }
.explain { margin: 0 0 1rem; color: var(--quiet); max-width: 46rem; }
section { margin: 2.75rem 0 0; padding-top: 1.75rem; border-top: 1px solid var(--line); }
.facts { display: grid; grid-template-columns: repeat(3, 1fr); gap: .75rem; margin: 0; }
.facts.four { grid-template-columns: repeat(4, 1fr); }
.facts > div { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .85rem 1rem .8rem; }
.facts dt { color: var(--quiet); font-size: .82rem; }
.facts dd { margin: .1rem 0 0; font-size: 1.5rem; font-weight: 620; line-height: 1.25; letter-spacing: -.01em; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.facts dd.note { font-size: .82rem; font-weight: 400; letter-spacing: 0; color: var(--quiet); line-height: 1.4; margin-top: .25rem; }
figure { margin: 0 0 1.25rem; }
.chart { display: block; width: 100%; height: auto; overflow: visible; }
.chart.narrow { display: none; }
.chart.strip { height: 1.75rem; border-radius: .35rem; overflow: hidden; }
.chart text { fill: var(--ink); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
.chart .tick, .chart .axis { fill: var(--quiet); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--grid); stroke-width: 1; }
.front { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; opacity: .55; }
.best circle { fill: var(--accent); stroke: var(--paper); stroke-width: 1.5; }
.best .label { font-weight: 600; }
.other circle { fill: var(--paper); stroke: var(--other); stroke-width: 1.75; }
.chart .other .label { fill: var(--quiet); }
.bar rect { fill: var(--bar); }
.chart .label { paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
.marker { stroke: var(--second); stroke-width: 1.5; stroke-dasharray: 4 3; }
.range .body { stroke: var(--bar); stroke-width: 9; stroke-linecap: round; }
.range .whisker { stroke: var(--other); stroke-width: 1.5; }
.range circle { fill: var(--second); stroke: var(--paper); stroke-width: 1.25; }
.scroll { overflow-x: auto; margin: 0 0 1.25rem; }
.tall { max-height: 34rem; overflow-y: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem .7rem; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; line-height: 1.3; color: var(--quiet); font-weight: 550; font-size: .8rem; background: var(--paper); position: sticky; top: 0; }
tbody th { font-weight: 500; position: sticky; left: 0; background: var(--paper); }
.number { text-align: right; }
tr.best th { color: var(--accent); font-weight: 650; }
code, .name { font: .92em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; unicode-bidi: isolate; }
small { color: var(--quiet); }
caption { caption-side: bottom; text-align: left; color: var(--quiet); font-size: .8rem; padding-top: .5rem; }
.sortable th[scope=col] { cursor: pointer; }
.heat { width: auto; min-width: min(100%, 34rem); border-collapse: separate; border-spacing: 2px; }
.heat th, .heat td { border: 0; padding: .3rem .4rem; text-align: center; border-radius: .25rem; }
.heat tbody th { color: var(--quiet); }
.heat td { min-width: 2.7rem; }
.tiles { list-style: none; display: flex; flex-wrap: wrap; gap: .4rem; padding: 0; margin: 0 0 1.25rem; font-size: .86rem; }
.tiles li { padding: .35rem .65rem; border-radius: .35rem; overflow-wrap: anywhere; }
.tiles b { font-weight: 620; font-variant-numeric: tabular-nums; }
.legend { display: flex; align-items: center; gap: 2px; color: var(--quiet); font-size: .8rem; margin: 0 0 .75rem; white-space: pre; }
.swatch { display: inline-block; width: 1.35rem; height: .8rem; border-radius: .2rem; vertical-align: -.05rem; }
.h0 { background: var(--h0); color: var(--quiet); } .h1 { background: var(--h1); color: var(--low); } .h2 { background: var(--h2); color: var(--low); }
.h3 { background: var(--h3); color: var(--low); } .h4 { background: var(--h4); color: var(--low); } .h5 { background: var(--h5); color: var(--mid); }
.h6 { background: var(--h6); color: var(--high); } .h7 { background: var(--h7); color: var(--high); } .h8 { background: var(--h8); color: var(--high); }
.f0 { fill: var(--h0); } .f1 { fill: var(--h1); } .f2 { fill: var(--h2); } .f3 { fill: var(--h3); } .f4 { fill: var(--h4); }
.f5 { fill: var(--h5); } .f6 { fill: var(--h6); } .f7 { fill: var(--h7); } .f8 { fill: var(--h8); }
.notes { color: var(--quiet); font-size: .9rem; padding-left: 1.2rem; overflow-wrap: anywhere; }
footer { margin-top: 3rem; color: var(--quiet); font-size: .8rem; }
@media (max-width: 600px) {
  main { padding: 1.5rem 1rem 3rem; }
  .facts, .facts.four { grid-template-columns: repeat(2, 1fr); }
  .facts dd { font-size: 1.25rem; }
  .chart.wide { display: none; }
  .chart.narrow { display: block; }
  .heat { font-size: .75rem; border-spacing: 1px; }
  th, td { padding: .38rem .5rem; }
  .heat th, .heat td { padding: .3rem .15rem; min-width: 0; }
  .heat { width: 100%; min-width: 0; }
}
@media print {
  :root {
    color-scheme: light;
    --paper: #ffffff; --card: #ffffff; --ink: #000000; --quiet: #444444; --line: #bbbbbb; --grid: #e2e2e2;
    --accent: #0b62a4; --second: #c2540a; --other: #777777; --bar: #7fb0d6;
    --h0: #f4f5f6; --h1: #e8f0f7; --h2: #d0e2f0; --h3: #b0cfe6; --h4: #8ab7d8; --h5: #669fc9; --h6: #34739f; --h7: #225a87; --h8: #124069;
    --low: #000000; --mid: #000000; --high: #ffffff;
  }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  body { font-size: 10.5pt; }
  main { max-width: none; padding: 0; }
  section { break-inside: auto; margin-top: 1.5rem; padding-top: 1rem; }
  h2, .explain { break-after: avoid; }
  figure, tr, .facts > div, .tiles li { break-inside: avoid; }
  .chart.wide { display: block; }
  .chart.narrow { display: none; }
  .scroll, .tall { overflow: visible; max-height: none; border: 0; }
  thead th, tbody th { position: static; }
  th, td { padding: .2rem .45rem; }
  table { font-size: 8.5pt; }
}
)css";

constexpr std::string_view kScript = R"js(
document.querySelectorAll("table.sortable").forEach(function (table) {
  var body = table.tBodies[0], sorted = -1, down = true;
  table.querySelectorAll("thead th").forEach(function (head, column) {
    function key(row) {
      var text = row.cells[column].textContent;
      if (head.className !== "number") return text;
      var value = text === "\u221e" ? Infinity : parseFloat(text.replace(/,/g, ""));
      return isNaN(value) ? -1 : value;
    }
    function sort() {
      down = sorted === column ? !down : head.className === "number";
      sorted = column;
      table.querySelectorAll("thead th").forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      Array.from(body.rows).sort(function (a, b) {
        var x = key(a), y = key(b);
        var order = x === y ? 0 : typeof x === "number" ? x - y : x.localeCompare(y);
        return down ? -order : order;
      }).forEach(function (row) { body.appendChild(row); });
    }
    head.tabIndex = 0;
    head.title = "Sort";
    head.addEventListener("click", sort);
    head.addEventListener("keydown", function (event) { if (event.key === "Enter") sort(); });
  });
});
)js";

}  // namespace

std::string_view page_style() noexcept { return kStyle; }
std::string_view page_script() noexcept { return kScript; }

}  // namespace imago::precision
