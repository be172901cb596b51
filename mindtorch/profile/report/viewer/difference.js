// The page of a comparison: what differs, from the whole to the parts. A figure is a pair: before, and after.

const data = JSON.parse(document.getElementById("data").textContent);
const measured = data.mode === "measured";
tellApart([...data.rows.rows, ...data.held.rows, ...(data.most ? [data.most] : [])].map((row) => row.file).filter(Boolean));

const METRICS = {
  flops: ["FLOPs", amount], macs: ["MACs", amount], bytes: ["bytes", bytes], ops: ["operations", count], params: ["parameters", number],
  peak: ["peak memory", bytes], device_peak: ["device peak", bytes], time: [measured ? "time per step" : "time", seconds], step_time: ["time per step", seconds],
};
const title = (metric) => METRICS[metric][0];
const plain = (metric, value) => METRICS[metric][1](value) || (metric === "bytes" || metric.endsWith("peak") ? "0 B" : "0");
const less = ([before, after]) => after - before;
const noise = (pair) => pair[2] === false;

function signed(metric, pair) {
  const by = less(pair);
  return by ? `${by > 0 ? "+" : "−"}${plain(metric, Math.abs(by))}` : "";
}

// With as many digits as show the difference.
function ratio([before, after]) {
  if (before === after) return "=";
  if (!before) return "new";
  if (!after) return "removed";
  const times = after / before;
  if (times >= 10 || times < 0.1) return `${Number(times.toPrecision(3))}×`;
  const digits = times === 1 ? 7 : Math.min(7, Math.max(2, 1 - Math.floor(Math.log10(Math.abs(times - 1)))));
  return `${times.toFixed(digits)}×`;
}

// −1 to 1: what is new is 1, what is gone −1; a hundredth can be told from nothing.
function grade([before, after]) {
  const most = Math.max(before, after);
  return most ? Math.sign(after - before) * (Math.abs(after - before) / most) ** 0.4 : 0;
}

function graded(value) {
  const much = Math.abs(value), dark = look() === DARK;
  if (!much) return `hsl(220 ${look().plain})`;
  return `hsl(${value > 0 ? 14 : 215} ${dark ? 50 : 75}% ${dark ? 24 + 16 * much : 88 - 22 * much}%)`;
}

const changed = Object.entries(data.totals).filter(([, pair]) => less(pair) && !noise(pair));

// What differs in all, and where most of it is.
function sentence() {
  const found = changed.map(([metric, pair]) => {
    const by = pair[0] ? `${less(pair) > 0 ? "+" : "−"}${percent(Math.abs(less(pair)), pair[0]) || "<0.1"} %` : "from nothing";
    return `${title(metric)} ${by}`;
  });
  if (!found.length) return data.rows.rows.length || data.modules.rows.length || data.held.rows.length ? "The sums are the same; parts differ." : "No operation, FLOP, byte or parameter differs.";
  const text = `${listed(found)}.`;
  const most = data.most, by = (value) => signed(most.metric, [0, value]);
  const module = most && `${most.module ? `in ${most.module}` : "outside modules"}${most.times > 1 ? ` ×${most.times}` : ""}`;
  const inside = most && most.op ? `; there ${[bare(most.op), most.file && `${base(most.file)}:${most.line}`].filter(Boolean).join(", ")} (${by(most.by_row)})` : "";
  return text[0].toUpperCase() + text.slice(1) + (most ? ` Most of the ${title(most.metric)} ${module} (${by(most.by)})${inside}.` : "");
}

const times = (row) => (row.repeated > 1 ? ` ×${row.repeated}` : "");

function tiles() {
  return el("dl", { class: "tiles" }, ...Object.entries(data.totals).map(([metric, pair]) => el("div", {}, el("dt", {}, title(metric)),
    el("dd", {}, plain(metric, pair[1])), el("dd", {}, noise(pair) ? `in noise, ${plain(metric, pair[0])} before` : less(pair) ? `${signed(metric, pair)}, ${ratio(pair)}` : "unchanged"))));
}

// The largest difference of a column, which the others are graded by.
const largest = (rows, metric) => Math.max(...rows.map((row) => Math.abs(less(row.figures[metric] || [0, 0]))), 0);

function pairTable({ id, caption, name, table, named, words, sums = true }) {
  const metrics = Object.keys(METRICS).filter((metric) => table.rows.some((row) => row.figures[metric] && less(row.figures[metric])));
  const most = Object.fromEntries(metrics.map((metric) => [metric, largest(table.rows, metric)]));
  const columns = metrics.map((metric) => [metric, title(metric)]);
  const made = (row, [metric]) => {
    const pair = row.figures[metric];
    if (!pair || !less(pair)) return el("td");
    const cells = [noise(pair) ? "in noise" : signed(metric, pair)];
    if (!row.all) cells.push(el("span", { class: "more" }, `${plain(metric, pair[0])} → ${plain(metric, pair[1])}, ${ratio(pair)}`));
    const facts = row.all || noise(pair) ? {} : { class: less(pair) > 0 ? "grown" : "shrunk", style: { "--grade": Math.abs(less(pair)) / most[metric] } };
    return el("td", facts, ...cells);
  };
  const sum = (rows, rest) => ({ all: true, figures: Object.fromEntries(metrics.map((metric) => [metric,
    [...rows.map((row) => row.figures[metric]), rest && rest.figures[metric]].filter(Boolean).reduce((found, pair) => [found[0] + pair[0], found[1] + pair[1]], [0, 0])])) });
  return sortedTable({ id, caption, name, table, rows: table.rows, columns, named, words, by: metrics[0], made, sum,
    order: (row, [metric]) => Math.abs(less(row.figures[metric] || [0, 0])), summed: ([metric]) => sums && (!measured || metric !== "time") });
}

const place = (row) => (row.file ? `${base(row.file)}:${row.line}` : "");

function rowName(row, query) {
  const parts = [marked(bare(row.op || row.category || row.module || "(outside any module)"), query)];
  if (row.repeated > 1) parts.push(el("b", {}, times(row)));
  const more = [row.op || row.category ? row.module : row.class, row.phase, row.what === "changed" ? "" : row.what].filter(Boolean).join(" · ");
  if (more) parts.push(el("span", { class: "faint" }, " ", marked(more, query)));
  if (row.file) parts.push(el("span", { class: "more code", title: row.file }, marked(`${place(row)}  ${row.source}`, query)));
  return parts;
}

const rowWords = (row) => [row.op, row.category, row.module, row.class, row.phase, row.what, place(row), row.source].filter(Boolean).join(" ");

// The graph of all modules and operations: each box is as wide as it was or is, whichever is more.
function flameSection() {
  const metrics = data.metrics.filter((metric) => data.flame[`${metric}_after`]).map((metric) => [metric, title(metric)]);
  if (!metrics.length || !data.flame.depth.length) return null;
  const first = metrics.findIndex(([metric]) => less(data.totals[metric]));
  if (first > 0) metrics.unshift(...metrics.splice(first, 1));
  const figures = (of, boxes, metric) => {
    const [before, after] = ["before", "after"].map((when) => of[`${metric}_${when}`]);
    const width = boxes.of(before.map((value, i) => Math.max(value, after[i])));
    return { ...width, before: boxes.of(before).total, after: boxes.of(after).total };
  };
  const said = ({ before, after }, i, metric) => {
    const which = Array.isArray(i) ? i : [i];
    const pair = [before, after].map((of) => which.reduce((sum, each) => sum + of[each], 0));
    const whole = `${plain(metric, pair[0])} → ${plain(metric, pair[1])}`;
    return [less(pair) ? `${whole}, ${signed(metric, pair)}, ${ratio(pair)}` : `${plain(metric, pair[1])}, unchanged`];
  };
  const coloured = (boxes, { before, after }, i) => graded(grade([before[i], after[i]]));
  const legend = el("ul", { class: "legend" }, ...[["more", 0.9], ["less", -0.9], ["unchanged", 0]].map(([text, value]) => {
    const made = el("span", { class: "swatch", "aria-hidden": "true" });
    paintAlways(() => made.style.setProperty("background", graded(value)));
    return el("li", {}, made, text);
  }));
  return section("flame", "Flame graph", el("p", { class: "note help" }, "All modules and their operations. The width of each box is the larger of before and after. Click, or arrows and Enter, to open one; Escape shows the whole."),
    ...flameGraph({ views: [["module", "By module", data.flame]], metrics, figures, said, coloured }), legend);
}

function memorySection() {
  if (!data.memory.some((row) => row[1] !== row[2]) && !data.held.rows.length) return null;
  const rows = data.memory.map(([kind, ...pair]) => [el("td", {}, swatch(kind, "area"), kind), plain("bytes", pair[0]), plain("bytes", pair[1]), signed("bytes", pair), ratio(pair)]);
  const parts = [el("h3", {}, "At the peak, by kind"), plainTable("Kinds of memory at the peak", ["kind", "before", "after", "difference", "ratio"], rows)];
  if (data.held.rows.length) parts.push(el("h3", {}, "By kind, module, and line that allocated it"), ...pairTable({ id: "held-table", caption: "Memory that differs", name: "kind", table: data.held, named: rowName, words: rowWords }));
  return section("memory", "Memory", ...parts);
}

function tableSection(id, name, head, note, table, more) {
  return table.rows.length ? section(id, name, el("p", { class: "note" }, note), ...pairTable({ id: `${id}-table`, caption: name, name: head, table, named: rowName, words: rowWords, ...more })) : null;
}

function runsSection() {
  const facts = data.runs.flatMap((run, i) => [el("dt", {}, i ? "after" : "before"), el("dd", {}, `${run.command} · ${run.steps ? `${counted(run.steps, "iteration")} on ` : ""}${run.device} · ${run.tool}`)]);
  const parts = [el("dl", { class: "facts" }, ...facts)];
  if (data.renamed.length) parts.push(el("h3", {}, "Renamed modules"), el("ul", { class: "plain" }, ...data.renamed.map(([before, after]) => el("li", {}, `${before} is now ${after}`))));
  return section("runs", "The runs", ...parts);
}

function build() {
  document.getElementById("head").append(
    el("div", { class: "tool" }, `genie diff · ${data.mode}`), el("h1", {}, data.diff.join(" → ")),
    el("p", { class: "lead", id: "sentence" }, sentence()),
    ...[...data.failed, ...data.notes].map((text) => el("p", { class: "warned" }, text)), tiles());
  const sections = [
    flameSection(), memorySection(),
    tableSection("phases", "Phases", "phase", "Phases that differ, and those of their parts that do.", data.phases, { sums: false }),
    tableSection("modules", "Modules", "module", "Modules that differ themselves, not only in their submodules.", data.modules),
    tableSection("rows", "Rows", "operation", "Rows that differ, by module, operation, phase and line.", data.rows), runsSection(),
  ].filter(Boolean);
  document.getElementById("main").replaceChildren(...sections);
  document.getElementById("links").append(...sections.map((each) => el("a", { href: `#${each.id}` }, each.querySelector("h2").textContent)));
  repaint();
}

build();
