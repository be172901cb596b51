// The page: what the report says, from the whole to the parts.

const data = JSON.parse(document.getElementById("data").textContent);
const report = data.report, totals = report.totals;
const sized = report.mode === "estimate", timed = totals.time_s > 0;
const ops = objects(data.ops), findings = report.findings || [];
tellApart(objects(data.lines).map((row) => row.file).filter(Boolean));
const kinds = Object.fromEntries(ops.map((row) => [row.name, row.category]));

const SAID = {
  matmul: "matrix products", attention: "attention", conv: "convolutions", rnn: "recurrent layers", norm: "normalization", softmax: "softmax",
  elementwise: "element-wise operations", reduction: "reductions", "data movement": "copies", view: "views", creation: "making tensors",
  random: "random numbers", loss: "losses", embedding: "embeddings", optimizer: "optimizer kernels", communication: "communication",
  python: "Python between operations", launch: "waiting for launches", waiting: "waiting", other: "other operations",
};

const BUSY = 0.1;  // as in cli/report_header.py

const WAITED = {
  files_s: "saving and loading", network_s: "waiting for the network", threads_s: "waiting for threads", children_s: "waiting for child processes",
  workers_s: "waiting for a DataLoader's workers to start and to end",
  recompute_s: "recomputing forward passes in backward", in_backward_s: "calling modules in backward",
  data_s: "loading data",
};

// [{kind, value}] of all operations, the largest first: seconds, or FLOPs where nothing has a time.
function byKind() {
  const found = new Map();
  for (const row of [...ops, ...(data.ops.rest ? [{ ...data.ops.rest, category: "other" }] : [])]) {
    found.set(row.category, (found.get(row.category) || 0) + (timed ? row.self_s : row.flops));
  }
  return [...found].map(([kind, value]) => ({ kind, value })).filter((part) => part.value > 0).sort((a, b) => b.value - a.value);
}

function timeText() {
  if (!timed) return work(totals.flops, "FLOP");
  if (!sized) return seconds(totals.time_s);
  const span = totals.about_high_s ? ` (${seconds(totals.about_low_s)} to ${seconds(totals.about_high_s)}, 8 in 10)` : "";
  return `about ${seconds(totals.time_s)}${span}`;
}

// Where the time went, in one sentence.
function sentence(parts) {
  if (!totals.ops) return "The program ran no torch operation.";
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  const most = parts.slice(0, 3).filter((part) => part.value > 0.02 * whole).map((part) => `${share(part.value, whole)} ${SAID[part.kind] || part.kind}`);
  const where = timed ? heaviest(data.modules, totals.time_s) : null;
  const line = timed ? objects(data.lines).find((row) => row.file && !row.package) : null;
  const text = `${timeText()}${sized && timed ? ` on ${report.device}` : ""} in ${counted(totals.ops, "operation")}${most.length ? `: ${listed(most)}` : ""}.`;
  const also = [];
  if (where) also.push(`${share(where.row.total_s, totals.time_s)} of it in ${where.path}${where.row.repeated > 1 ? ` (${where.row.repeated} identical modules)` : ""}`);
  if (line && line.self_s > 0.05 * totals.time_s) also.push(`${share(line.self_s, totals.time_s)} on one line, ${base(line.file)}:${line.line}`);
  const waits = report.waits || {};
  for (const [key, what] of Object.entries(WAITED)) {
    if (timed && waits[key] > 0.05 * totals.time_s && !((key === "data_s" || key === "workers_s") && findings.some((row) => row.id === "data-wait"))) also.unshift(`${share(waits[key], totals.time_s)} ${what}`);
  }
  const start = text[0].toUpperCase() + text.slice(1);
  return also.length ? `${start} ${also.join("; ").replace(/^./, (c) => c.toUpperCase())}.` : start;
}

// How, where it did not by itself.
function ended() {
  if (report.interrupted) return "The program was interrupted; the report covers what ran until then.";
  return report.exit_code ? `The program ended with exit code ${report.exit_code}; the report covers what ran until then.` : "";
}

// Those of one class and size are one row.
const models = () => report.models || [];
const named = (model) => (model.times > 1 ? `${model.name} ×${model.times}` : model.name);

function tiles() {
  const memory = report.memory || {}, peak = memory.peak_device_bytes || totals.peak_bytes;
  const found = [];
  const add = (title, value, more) => found.push(el("div", {}, el("dt", {}, title), el("dd", {}, value), more && el("dd", {}, more)));
  const fast = totals.flops - (totals.host_flops || 0);
  if (timed) add(sized ? "Time, about" : "Time", seconds(totals.time_s), sized ? `at least ${seconds(totals.bound_s)}` : `of ${seconds(totals.wall_s)} for the whole run`);
  add("Work", work(totals.flops, "FLOP"), timed && fast ? work(fast / totals.time_s, "FLOP/s") : `${work(totals.macs, "MAC")}`);
  if (peak) {
    const capacity = memory.capacity_bytes;
    add("Peak memory", bytes(peak), capacity ? `${memory.fits ? "fits" : "does not fit"} in ${bytes(capacity)}` : memory.device || "");
  }
  if (totals.energy_j) add("Energy", joules(totals.energy_j), `${joules(totals.energy_low_j)} to ${joules(totals.energy_high_j)}, ${report.energy.power_w.toFixed(0)} W${report.energy.accelerators > 1 ? ", of one accelerator" : ""}`);
  if (totals.params) add("Parameters", number(totals.params), models().length > 1 ? `of ${counted(models().reduce((sum, model) => sum + model.times, 0), "model")}` : models().map(named).join(""));
  add("Coverage", `${Math.floor(1000 * totals.coverage) / 10} %`, "of compute calls have a FLOP formula");
  if (!sized && timed) add("Overhead", `${percent(totals.overhead_s, totals.time_s) || 0} %`, `of the time, ${seconds(totals.overhead_s)} of recording, subtracted`);
  return el("dl", { class: "tiles" }, ...found);
}

function oneBar(parts) {
  const whole = parts.reduce((sum, part) => sum + part.value, 0);
  const shown = parts.filter((part) => part.value >= 0.01 * whole);
  const text = (part) => `${SAID[part.kind] || part.kind} ${share(part.value, whole)}`;
  const bar = el("div", { class: "whole", role: "img", "aria-label": shown.map(text).join(", ") }, ...parts.map((part) => {
    const piece = el("span", { style: { width: `${(100 * part.value) / whole}%` }, on: {
      mousemove: (event) => hint(`${text(part)}\n${timed ? seconds(part.value) : work(part.value, "FLOP")}`, event), mouseleave: () => hint(""),
    } });
    paintAlways(() => piece.style.setProperty("background", colour(part.kind, "area")));
    return piece;
  }));
  return [bar, el("ul", { class: "legend" }, ...shown.map((part) => el("li", {}, swatch(part.kind, "area"), text(part))))];
}

function place(row) {
  return row.file ? `${base(row.file)}:${row.line}` : "(no line of the program)";
}

function lineName(row, query) {
  const parts = [el("span", { class: "code", title: row.file }, marked(place(row), query))];
  if (row.function) parts.push(el("span", { class: "faint" }, ` ${row.function}`));
  if (row.package) parts.push(el("span", { class: "faint" }, ` · ${row.package}`));
  if (row.source) parts.push(el("span", { class: "more code" }, marked(row.source, query)));
  return parts;
}

function opName(row, query) {
  const named = { "(python)": report.lazy ? "(Python and recording)" : "(Python, between operations)", "(launch)": "(waiting for launches)" };
  return [swatch(row.category), marked(named[row.name] || bare(row.name), query), el("span", { class: "faint" }, row.name.startsWith("(") ? "" : ` ${row.category}`)];
}

function memorySection() {
  const facts = report.memory;
  if (!facts || !facts.peak_bytes) return null;
  const parts = [];
  if (facts.timeline && facts.timeline.bytes.length > 1) {
    parts.push(memoryChart(facts));
    if (!facts.timeline.categories) parts.push(el("p", { class: "note" }, "The run made too many tensors to keep their kinds over time; with --target NAME the report has them."));
  }
  const rows = Object.entries(facts.categories || {}).sort((a, b) => b[1] - a[1]).map(([kind, size]) => [
    el("td", {}, swatch(kind, "area"), kind), bytes(size),
    el("td", { class: "share", style: { "--part": size / facts.peak_bytes } }, percent(size, facts.peak_bytes))]);
  parts.push(el("h3", {}, `What the peak of ${bytes(facts.peak_bytes)} is made of`), plainTable("Kinds of memory at the peak", ["kind", "bytes", "%"], rows));
  const card = [["allocated: tensors", facts.peak_allocated_bytes], ["reserved: torch's segments", facts.peak_reserved_bytes], ["device: everything, with the context", facts.peak_device_bytes]].filter((row) => row[1]);
  if (card.length) parts.push(el("h3", {}, "On the card"), plainTable("Memory of the card", ["memory", "peak", "%"], card.map(([name, size]) => [name, bytes(size), percent(size, facts.capacity_bytes)])));
  if ((facts.lines || []).length) {
    parts.push(el("h3", {}, "Lines that allocated the memory at the peak"), plainTable("Lines at the peak", ["line", "tensors", "bytes", "%"], facts.lines.slice(0, 12).map((row) => [
      el("td", {}, ...lineName(row, "")), count(row.count), bytes(row.bytes),
      el("td", { class: "share", style: { "--part": row.bytes / facts.peak_bytes } }, percent(row.bytes, facts.peak_bytes))])));
  }
  if ((facts.largest || []).length) {
    parts.push(el("h3", {}, "Largest tensors"), plainTable("Largest tensors at the peak", ["made by", "kind", "tensors", "bytes"], facts.largest.map((row) => [
      el("td", {}, [bare(row.op || ""), row.module].filter(Boolean).join(" in ") || "allocated outside operations", row.file ? el("span", { class: "more code" }, `${place(row)}  ${row.source || ""}`) : null),
      row.category, count(row.count), bytes(row.bytes)])));
  }
  return section("memory", "Memory", ...parts);
}

// When what ran, of a measured run.
function timeSection() {
  const facts = data.over_time;
  if (!facts) return null;
  const parts = [];
  for (const [i, thread] of facts.threads.entries()) {
    if (facts.threads.length > 1) parts.push(el("h3", {}, i ? `Thread ${i + 1}` : "The busiest thread"));
    const kinds = Object.keys(thread.kinds).map((kind) => [kind, sumOf(thread.kinds[kind])]).sort((a, b) => b[1] - a[1]).slice(0, 8);
    const seen = [...new Set(thread.phases)].filter((phase) => phase >= 0).map((phase) => facts.phases[phase]);
    parts.push(timeChart(facts, thread), el("ul", { class: "legend" }, ...kinds.map(([kind]) => el("li", {}, swatch(kind, "area"), SAID[kind] || kind))),
      el("ul", { class: "legend" }, el("li", {}, "phases:"), ...seen.map((name) => el("li", {}, phaseSwatch(name), name))));
  }
  if (facts.dropped) parts.push(el("p", { class: "note" }, `${counted(facts.dropped, "later event")} did not fit and are not drawn.`));
  return section("when", "Timeline", el("p", { class: "note" }, "The height is the share of time spent in operations; the rest is Python between them, waiting, and genie's recording. Below: the phases, and where steps end."), ...parts);
}

// Blocks that are known, and proven where they were run.
function patternsSection() {
  const rows = report.patterns || [];
  if (!rows.length) return null;
  return section("patterns", "Made of", plainTable("Known blocks", ["block", "places", "calls", "time", "%", "FLOPs"], rows.map((row) => [
    el("td", {}, row.name, row.verified ? null : el("span", { class: "faint" }, " not verified"),
      el("span", { class: "more" }, [Object.entries(row.attributes || {}).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(", ") : value}`).join(" · "), (row.modules || []).join(", ")].filter(Boolean).join(" — "))),
    count(row.instances), count(row.calls), timed ? seconds(row.time_s) : "", timed ? percent(row.time_s, totals.time_s) : "", amount(row.flops)])));
}

// Parts of phases: with the rest, those of a phase sum to it.
function partsTable() {
  const rows = report.parts || [];
  if (!rows.length) return null;
  return plainTable("Parts of phases", ["part of a phase", "ops", "time", "%", "FLOPs"], rows.map((row) => [
    el("td", {}, `${row.phase}: ${row.name}`, row.calls > 1 && timed ? el("span", { class: "faint" }, ` ${count(row.calls)} × ${seconds(row.time_s / row.calls)}`) : null,
      row.modules.length ? el("span", { class: "more" }, row.modules.join(", ")) : null),
    count(row.ops), timed ? seconds(row.time_s) : "", timed ? percent(row.time_s, totals.time_s) : "", amount(row.flops)]));
}

function rooflineSection() {
  const roofline = report.roofline;
  if (!roofline || !roofline.ops) return null;
  const predicted = totals.predicted_s || 0;
  const bound = ["compute", "memory", "launch", "communication"].filter((name) => roofline[`${name}_s`] > 0).map((name) => `${share(roofline[`${name}_s`], predicted)} ${name}`);
  const sources = Object.entries(roofline.factors || {}).map(([family, source]) => `${family}: ${source}`);
  const chart = rooflineChart(roofline, kinds);
  return section("roofline", "Roofline", el("p", {}, `${sized ? "Bound" : `${seconds(predicted)} on ${roofline.target}; bound`} by ${listed(bound)}; ${roofline.intensity.toPrecision(3)} FLOP/byte overall.`),
    sources.length ? el("p", { class: "note" }, `Factors: ${sources.join("; ")}.`) : null,
    chart && el("p", { class: "note" }, "Each circle is an operation, sized by its share of the time; operations below 0.2 % are not drawn."), chart,
    plainTable("Operations on the roofline", ["operation", "time", "FLOPs", "bytes moved", "FLOP/byte", "FLOP/s"], roofline.ops.slice(0, 15).map((op) => [
      el("td", {}, swatch(kinds[op.name], "area"), bare(op.name)), seconds(op.about_s), amount(op.flops), bytes(op.bytes),
      op.flops && op.bytes ? (op.flops / op.bytes).toPrecision(3) : "", op.flops && op.about_s ? amount(op.flops / op.about_s) : ""])));
}

function bullets(lines) {
  return el("ul", { class: "plain" }, ...lines.map((line) => el("li", {}, line)));
}

function findingsSection() {
  if (!findings.length) return null;
  return section("findings", "Findings", ...findings.map((row) => el("p", {}, row.text,
    row.place.source ? el("span", { class: "more code" }, row.place.source) : null, el("span", { class: "more" }, `try ${row.try}`))));
}

function uncountedSection() {
  const parts = [];
  const uncounted = report.uncounted || [];
  parts.push(el("p", {}, uncounted.length ? `No FLOP formula for ${counted(uncounted.reduce((sum, row) => sum + (row.calls || 0), 0), "call")}:` : "Every compute call has a FLOP formula."));
  if (uncounted.length) parts.push(plainTable("Operations without a FLOP formula", ["operation", "calls", "time"], uncounted.map((row) => [bare(row.name), count(row.calls), seconds(row.self_s)])));
  const unseen = (report.unseen || []).map((row) => `${row.count === null ? "some" : count(row.count)} × ${row.what}: no figure includes what ran there`);
  if (unseen.length) parts.push(el("h3", {}, "Not seen"), bullets(unseen));
  if ((report.warnings || []).length) parts.push(el("h3", {}, "Warnings"), ...report.warnings.map((text) => el("p", { class: "warned" }, text)));
  if ((report.assumed || []).length) {
    parts.push(el("h3", {}, "Values assumed because they are unknown"), plainTable("Assumed values", ["read", "as", "times"], report.assumed.map((row) => [
      el("td", {}, row.op, row.file ? el("span", { class: "more code" }, `${place(row)}  ${row.source || ""}`) : null), assumption(row), count(row.calls)])));
  }
  for (const [key, title] of [["not_written", "Not written, because this is an estimate"], ["not_removed", "Not removed, because this is an estimate"], ["not_held_back", "Changes that genie could not prevent"]]) {
    if ((report[key] || []).length) parts.push(el("h3", {}, title), bullets(report[key]));
  }
  return section("uncounted", "Not counted", ...parts);
}

// What a configuration's model was given to do, and how fast it did.
function workloadFacts(workload) {
  const unit = workload.unit || "tokens", seconds_of = Object.fromEntries(objects(data.phases).map((row) => [row.name, row.time_s]));
  const parts = [["prefill", ["prefill"]], ["decode", ["decode"]], workload.train ? ["training", ["forward", "backward", "optimizer"]] : ["forward", ["forward"]]];
  const rates = [];
  for (const [name, phases] of parts) {
    const row = (workload.phases || []).find((each) => each.name === phases[0]);
    const spent = phases.reduce((sum, phase) => sum + (seconds_of[phase] || 0), 0);
    if (row && spent && row.steps) rates.push(`${name} ${amount((row[unit] || 0) / spent)} ${unit}/s${name === "decode" ? `, ${seconds(spent / row.steps)} a call` : ""}`);
  }
  const cache = workload.kv_cache, optimizer = workload.optimizer;
  return [
    ["workload", `${count(workload.batch || 1)}${workload.seq ? ` × ${count(workload.seq)}` : ""} ${unit}${workload.decode ? `, then ${count(workload.decode)} decoded` : ""}${workload.train ? ", a training step" : ""}, ${workload.dtype}`],
    ["speed", rates.join(" · ")],
    ["cache", cache ? `${bytes(cache.bytes) || "0 B"} at the end${cache.bytes_per_step ? `, ${bytes(cache.bytes_per_step)} more a step` : ""}` : ""],
    ["optimizer", optimizer ? `${optimizer.name}, gradients ${bytes(optimizer.gradient_bytes)}, state ${bytes(optimizer.state_bytes)}` : ""],
  ];
}

function runSection() {
  const tool = report.tool, startup = report.startup || {}, steps = report.steps || {}, facts = [];
  const add = (name, text) => { if (text) facts.push(el("dt", {}, name), el("dd", {}, text)); };
  add("command", report.command.join(" "));
  add(sized ? "sized for" : "ran on", `${report.device}, ${report.mode}`);
  add("with", `mindtorch ${tool.mindtorch}, torch ${tool.torch}, Python ${tool.python}`);
  for (const [name, text] of report.workload ? workloadFacts(report.workload) : []) add(name, text);
  add("models", models().map((model) => `${named(model)}, ${counted(model.params, "parameter")}${model.param_bytes ? ` (${bytes(model.param_bytes)})` : ""}${model.times > 1 ? " each" : ""}`).join("; "));
  if (!sized) add("start-up", [["imports", startup.import_s], ["construction", startup.init_s], ["compiling", startup.compile_s]].filter((part) => part[1] > 0).map(([what, spent]) => `${seconds(spent)} ${what}`).join(", "));
  if (steps.count > 1) add("steps", `${count(steps.count)}${steps.time_s ? `, median ${seconds(steps.time_s.median)} (${seconds(steps.time_s.min)} to ${seconds(steps.time_s.max)})` : ""}${steps.warmup ? `; ${count(steps.warmup)} left out as warm-up` : ""}`);
  add("waits", Object.entries(report.waits || {}).filter(([, spent]) => spent > 0).map(([what, spent]) => `${seconds(spent)} ${WAITED[what] || what.replace(/_s$/, "")}`).join(", "));
  if ((report.threads || []).some((row) => row.name !== "main")) add("threads", report.threads.map((row) => `${row.name}${row.count > 1 ? ` ×${row.count}` : ""}: ${counted(row.ops, "operation")}`).join(", "));
  if (report.lazy) add("recorded", `${count(report.lazy.runs)} operations ran when values were read, ${seconds(report.lazy.run_s)} on ${report.lazy.executor}`);
  if (report.npu) add("on NPUs", `${count(Object.values(report.npu.native).reduce((a, b) => a + b, 0))} calls native, ${count(Object.values(report.npu.staged).reduce((a, b) => a + b, 0))} staged through the CPU`);
  if (report.cluster) add("rank", `${report.cluster.rank} of ${report.cluster.world_size}`);
  if (totals.queued_s > BUSY * totals.time_s) add("machine", `busy: for ${seconds(totals.queued_s)} of the time (${percent(totals.queued_s, totals.time_s)} %), the program waited for a processor`);
  if (report.host && report.host.here_s > 0) add("host time", `at least ${seconds(report.host.here_s)} of the program's own Python between operations, measured on this machine; no other figure includes it`);
  add("ended", ended());
  const parts = [el("dl", { class: "facts" }, ...facts)];
  const ranks = (report.ranks || []).filter((row) => row.ran_as !== undefined);
  if (ranks.length) parts.push(el("h3", {}, "Ranks"), plainTable("Ranks", ["rank", "estimated as", "peak", "operations", "FLOPs", "time", "exposed"], ranks.map((row, i) => [String(row.rank ?? i), String(row.ran_as), bytes(row.peak_bytes), count(row.ops), amount(row.flops), seconds(row.time_s), seconds(row.exposed_s)])));
  if ((report.labels || []).length) {
    parts.push(el("h3", {}, "Scopes, named by record_function; they may nest"), plainTable("Scopes", ["scope", "calls", "total", "%"], report.labels.map((row) => [row.name, count(row.calls), seconds(row.total_s), percent(row.total_s, totals.time_s)])));
  }
  const collectives = (report.cluster && report.cluster.collectives) || [];
  if (collectives.length) parts.push(el("h3", {}, "Communication of this rank"), plainTable("Collectives", ["collective", "ranks", "count", "bytes", "time", "exposed"], collectives.map((row) => [row.kind, count(row.ranks), count(row.count), bytes(row.bytes), seconds(row.time_s), seconds(row.exposed_s)])));
  if ((report.advice || []).length) parts.push(el("h3", {}, "Alternatives, each estimated"), plainTable("Alternatives", ["change", "memory", "fits", "time"], report.advice.map((row) => [(row.changes || [row.name]).join(" + "), bytes(row.peak_bytes), row.fits === null ? "" : row.fits ? "yes" : "no", seconds(row.time_s)])));
  return section("run", "The run", ...parts);
}

function kindOf(boxes, i) {
  if (boxes.kind[i] === OP) return boxes.detail[i];
  if (boxes.kind[i] === TIME) return boxes.name[i].startsWith("(waiting") ? "waiting" : "python";
  return "";
}

// A box's share, or that of several; of all, as the header has it.
function flameText({ total }, i, metric) {
  if (i === 0) return [metric === "ns" ? seconds(totals.time_s) : work(totals.flops, "FLOP")];
  const value = Array.isArray(i) ? i.reduce((sum, each) => sum + total[each], 0) : total[i];
  const part = percent(value, total[0]), figure = metric === "ns" ? seconds(value / 1e9) : work(value, "FLOP");
  return [Array.isArray(i) ? `${figure}, ${part || 0} % of all` : `${figure}${part ? `, ${part} %` : ""}`];
}

function build() {
  const parts = byKind(), metrics = [...(timed ? [["ns", "Time"]] : []), ...(totals.flops ? [["flops", "FLOPs"]] : [])];
  const { together, module, line } = data.flames, layered = together.depth.length < module.depth.length;
  const views = [...(layered ? [["together", "By module, equal layers merged", together]] : []), ["module", layered ? "Each layer" : "By module", module], ["line", "By line", line]];
  document.getElementById("head").append(
    el("div", { class: "tool" }, `genie profile · ${report.mode} · ${report.device} · torch ${report.tool.torch}`),
    el("h1", {}, report.command.join(" ") || "a program"),
    el("p", { class: "lead", id: "sentence" }, sentence(parts)), ...(ended() ? [el("p", { class: "warned" }, ended())] : []),
    ...(parts.length && totals.ops ? oneBar(parts) : []), ...(totals.ops ? [tiles()] : []));
  const whole = totals.time_s;
  const chosen = (rows) => rows.filter(Boolean);
  const sections = chosen(!totals.ops ? [uncountedSection(), runSection()] : [
    findingsSection(),
    data.phases.rows.length && section("phases", "Phases", ...sortedTable({ id: "phase-table", caption: "Phases", name: "phase", table: data.phases, whole, named: (row, query) => [marked(row.name, query)], words: (row) => row.name, by: timed ? "time_s" : "flops", searched: false }), partsTable()),
    metrics.length && section("flame", "Flame graph", el("p", { class: "note help" }, "Each box is as wide as its share. Click, or arrows and Enter, to open one; Escape shows the whole."), ...flameGraph({ views, metrics, figures: (of, boxes, metric) => boxes.of(of[metric]), said: flameText, coloured: (boxes, _, i) => colour(kindOf(boxes, i)) })),
    section("modules", "Modules", ...moduleTree(data.modules, whole)),
    ops.length && section("ops", "Operations", ...sortedTable({ id: "op-table", caption: "Operations", name: "operation (aten)", table: data.ops, whole, named: opName, words: (row) => `${row.name} ${row.category}`, by: timed ? "self_s" : "flops" })),
    data.lines.rows.length && section("lines", "Lines", ...sortedTable({ id: "line-table", caption: "Lines", name: "line", table: data.lines, whole, named: lineName, words: (row) => `${row.file}:${row.line} ${row.function} ${row.package} ${row.source}`, by: timed ? "self_s" : "flops" })),
    data.shapes.rows.length && section("shapes", "Shapes", el("p", { class: "note" }, "Of inputs and outputs; views are left out."), ...sortedTable({ id: "shape-table", caption: "Shapes", name: "operation and shapes", table: data.shapes, whole, named: (row, query) => [marked(bare(row.name), query), el("span", { class: "more code" }, marked(`${row.inputs || "()"} → ${row.outputs || "()"}`, query))], words: (row) => `${row.name} ${row.inputs} ${row.outputs}`, by: timed ? "self_s" : "flops" })),
    patternsSection(), timeSection(), memorySection(), rooflineSection(), uncountedSection(), runSection(),
  ]);
  document.getElementById("main").replaceChildren(...sections);
  document.getElementById("links").append(...sections.map((each) => el("a", { href: `#${each.id}` }, each.querySelector("h2").textContent)));
  repaint();
}

build();
