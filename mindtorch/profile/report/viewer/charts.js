// Memory over the program, and the roofline.

const TEXT = 12;  // pixels

function axisText(x, y, text, anchor = "start") {
  return svg("text", { x, y, "text-anchor": anchor, "font-size": TEXT, fill: look().faint }, text);
}

function drawing(title, height, paint) {
  const holder = el("div", { class: "chart" });
  painters.push(() => {
    const width = Math.max(300, holder.clientWidth || 1100);
    const made = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    paint(made, width, height);
    holder.replaceChildren(made);
  });
  return holder;
}

// Bytes live from the program's begin to its end, by kind where that is known.
function memoryChart(facts) {
  const { bytes: heights, categories } = facts.timeline;
  const most = Math.max(...heights, 1);
  const kinds = categories ? Object.keys(categories) : ["bytes live"];
  const series = kinds.map((kind) => (categories ? categories[kind] : heights));
  // What stays lies below what comes and goes.
  const order = kinds.map((_, i) => i).sort((a, b) => Math.min(...series[b]) - Math.min(...series[a]) || a - b);
  const top = heights.indexOf(Math.max(...heights));
  const at = facts.at || {};
  const where = [bare(at.op || ""), at.module, at.file ? `${base(at.file)}:${at.line}` : ""].filter(Boolean).join(", ");
  const title = `Memory over the program: at most ${bytes(most)}${where ? `, in ${where}` : ""}`;
  const chart = drawing(title, 240, (made, width, height) => {
    const left = 4, right = width - 4, bottom = height - 22, high = 26;
    const n = heights.length;
    const x = (i) => left + ((right - left) * i) / n;
    const y = (value) => bottom - ((bottom - high) * value) / most;
    const below = new Array(n).fill(0);
    for (const k of order) {
      const upper = below.map((sum, i) => sum + (series[k][i] || 0));
      let path = `M${x(0)} ${y(below[0]).toFixed(1)}`;
      for (let i = 0; i < n; i++) path += `V${y(upper[i]).toFixed(1)}H${x(i + 1).toFixed(1)}`;
      for (let i = n - 1; i >= 0; i--) path += `V${y(below[i]).toFixed(1)}H${x(i).toFixed(1)}`;
      made.append(svg("path", { d: path + "Z", fill: categories ? colour(kinds[k], "area") : `hsl(215 ${look().area})` }, svg("title", {}, kinds[k])));
      upper.forEach((sum, i) => { below[i] = sum; });
    }
    const line = (from, to, value, dashes) => svg("line", { x1: from, x2: to, y1: y(value), y2: y(value), stroke: look().faint, "stroke-width": 1, "stroke-dasharray": dashes });
    made.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: look().line }));
    made.append(line(left, right, most, "2 4"));
    made.append(svg("circle", { cx: x(top + 0.5), cy: y(most), r: 4, fill: look().ink }));
    const late = top > n / 2;
    made.append(svg("text", { x: x(top + 0.5) + (late ? -9 : 9), y: y(most) - 9, "text-anchor": late ? "end" : "start", "font-size": TEXT, fill: look().ink }, width < 600 ? bytes(most) : `${bytes(most)}${where ? ` in ${where}` : ""}`));
    made.append(axisText(left, height - 6, "start"), axisText(right, height - 6, "end", "end"), axisText((left + right) / 2, height - 6, "operations, as the program ran them", "middle"));
  });
  return chart;
}

// What ran when: of each stretch of the run the share of each kind of operation, below it the phase; ends of steps.
function timeChart(facts, thread) {
  const names = Object.keys(thread.kinds), n = thread.phases.length, wide = (facts.seconds * 1e9) / n;
  const order = names.map((_, i) => i).sort((a, b) => sumOf(thread.kinds[names[b]]) - sumOf(thread.kinds[names[a]]) || a - b);
  const parts = order.slice(0, 3).map((i) => `${SAID[names[i]] || names[i]} ${share(sumOf(thread.kinds[names[i]]), facts.seconds * 1e9)}`);
  return drawing(`Timeline of ${seconds(facts.seconds)}: ${listed(parts)}`, 170, (made, width, height) => {
    const left = 4, right = width - 4, high = 14, bottom = height - 40, band = 9;
    const x = (i) => left + ((right - left) * i) / n, y = (part) => bottom - (bottom - high) * Math.min(part, 1);
    const below = new Array(n).fill(0);
    for (const k of order) {
      const upper = below.map((sum, i) => sum + thread.kinds[names[k]][i] / wide);
      let path = `M${x(0)} ${y(below[0]).toFixed(1)}`;
      for (let i = 0; i < n; i++) path += `V${y(upper[i]).toFixed(1)}H${x(i + 1).toFixed(1)}`;
      for (let i = n - 1; i >= 0; i--) path += `V${y(below[i]).toFixed(1)}H${x(i).toFixed(1)}`;
      made.append(svg("path", { d: path + "Z", fill: colour(names[k], "area") }, svg("title", {}, SAID[names[k]] || names[k])));
      upper.forEach((sum, i) => { below[i] = sum; });
    }
    for (let i = 0, from = 0; i < n; i++) {
      if (i + 1 < n && thread.phases[i + 1] === thread.phases[from]) continue;
      const phase = thread.phases[from];
      if (phase >= 0) made.append(svg("rect", { x: x(from), width: Math.max(x(i + 1) - x(from), 0.5), y: bottom + 3, height: band, fill: phaseColour(facts.phases[phase]) }, svg("title", {}, facts.phases[phase])));
      from = i + 1;
    }
    for (const at of facts.steps) {
      const place = left + ((right - left) * at) / facts.seconds;
      made.append(svg("line", { x1: place, x2: place, y1: bottom, y2: bottom + band + 6, stroke: look().ink, "stroke-width": 1 }));
    }
    made.append(svg("line", { x1: left, x2: right, y1: bottom, y2: bottom, stroke: look().line }));
    made.append(axisText(left, height - 6, `${seconds(facts.start_s)} after the start`), axisText(right, height - 6, seconds(facts.start_s + facts.seconds), "end"));
  });
}

const sumOf = (values) => values.reduce((sum, value) => sum + value, 0);
const PHASES = { forward: 215, prefill: 195, decode: 175, backward: 262, optimizer: 0, data: 28 };
const phaseColour = (name) => (PHASES[name] === undefined ? `hsl(220 ${look().plain})` : `hsl(${PHASES[name]} ${look().area})`);

function phaseSwatch(name) {
  const made = el("span", { class: "swatch", "aria-hidden": "true" });
  paintAlways(() => made.style.setProperty("background", phaseColour(name)));
  return made;
}

// FLOPs per byte against FLOPs a second, both logarithmic: an op lies below the slope and below its roof.
function rooflineChart(roofline, kinds) {
  const whole = roofline.ops.reduce((sum, op) => sum + (op.about_s || 0), 0);
  // Those that matter: a single odd one would make the picture small.
  const ops = roofline.ops.filter((op) => op.flops > 0 && op.bytes > 0 && op.about_s > 0.002 * whole);
  if (!ops.length) return null;
  const speed = roofline.roofs.bytes_per_s;
  const named = new Map();  // by rate: what has it
  for (const [name, rate] of Object.entries(roofline.roofs.flops_per_s)) named.set(rate, [...(named.get(rate) || []), name]);
  const roofs = [...named].sort((one, two) => two[0] - one[0]).map(([rate, names]) => [listed(names), rate]);
  const xs = ops.map((op) => op.flops / op.bytes), ys = ops.map((op) => op.flops / op.about_s);
  const ridge = roofs[0][1] / speed;
  const low = 10 ** Math.floor(Math.log10(Math.min(...xs, 0.1))), high = 10 ** Math.ceil(Math.log10(Math.max(...xs, ridge * 4)));
  const bottom = 10 ** Math.floor(Math.log10(Math.min(...ys))), top = 10 ** Math.ceil(Math.log10(Math.max(...ys, roofs[0][1])));
  return drawing(`Roofline of ${roofline.target}: FLOPs per byte and FLOPs a second of ${counted(ops.length, "operation")}; the table has the figures`, 380, (made, width, height) => {
    const area = { left: 66, right: width - 14, top: 14, bottom: height - 40 };
    const x = (value) => area.left + ((area.right - area.left) * Math.log10(value / low)) / Math.log10(high / low);
    const y = (value) => area.bottom - ((area.bottom - area.top) * Math.log10(value / bottom)) / Math.log10(top / bottom);
    const few = width < 600 ? 3 : 1;
    for (let tick = low, i = 0; tick <= high * 1.01; tick *= 10, i++) {
      made.append(svg("line", { x1: x(tick), x2: x(tick), y1: area.top, y2: area.bottom, stroke: look().line }));
      if (i % few === 0) made.append(axisText(x(tick), area.bottom + 16, tick < 1 ? String(+tick.toPrecision(1)) : amount(tick), x(tick) + 2 * TEXT > width ? "end" : "middle"));
    }
    for (let tick = bottom; tick <= top * 1.01; tick *= 10) {
      made.append(svg("line", { x1: area.left, x2: area.right, y1: y(tick), y2: y(tick), stroke: look().line }));
      made.append(axisText(area.left - 8, y(tick) + 4, amount(tick) || "0", "end"));
    }
    made.append(axisText((area.left + area.right) / 2, height - 6, "FLOPs per byte", "middle"), axisText(area.left + 6, area.top + 12, "FLOP/s"));
    const labels = [];  // x, y and length of those that are there
    let above = -TEXT;  // where the last roof's name stands
    for (const [name, rate] of roofs) {
      const from = Math.max(low, bottom / speed), corner = Math.min(rate / speed, high);
      made.append(svg("path", { d: `M${x(from)} ${y(from * speed)}L${x(corner)} ${y(corner * speed)}H${area.right}`, fill: "none", stroke: look().ink, "stroke-width": 1.4 }));
      above = Math.max(y(rate) - 5, above + TEXT + 2);  // below its line where two are near each other
      made.append(svg("text", { x: area.right - 4, y: above, "text-anchor": "end", "font-size": TEXT, fill: look().ink }, `${name}: ${work(rate, "FLOP/s")}`));
    }
    ops.slice().sort((one, two) => two.about_s - one.about_s).forEach((op, i) => {
      const cx = x(op.flops / op.bytes), cy = y(op.flops / op.about_s), r = 4 + 18 * Math.sqrt(op.about_s / whole);
      const text = `${bare(op.name)}: ${seconds(op.about_s)}, ${percent(op.about_s, whole) || 0} %, ${(op.flops / op.bytes).toPrecision(3)} FLOP/byte, ${work(op.flops / op.about_s, "FLOP/s")}`;
      made.append(svg("circle", { cx, cy, r, fill: colour(kinds[op.name], "area"), "fill-opacity": 0.75, stroke: look().paper }, svg("title", {}, text)));
      const label = bare(op.name).slice(0, 32), long = label.length * TEXT * 0.58;
      const box = cx + r + 3 + long > area.right ? [cx - r - 3 - long, cy] : [cx + r + 3, cy];
      const free = labels.every(([x0, y0, l]) => Math.abs(y0 - box[1]) > TEXT + 2 || box[0] > x0 + l || box[0] + long < x0);
      if (i < 12 && free) {
        labels.push([...box, long]);
        made.append(svg("text", { x: box[0], y: cy + 4, "font-size": TEXT, fill: look().ink }, label));
      }
    });
  });
}
