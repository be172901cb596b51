// The flame graph, root at the top: one canvas, of which only what can be seen is drawn.

const ROW = 19, SMALLEST = 0.4;  // pixels: height of a box, and width below which nothing is drawn
const MODULE = 0, OP = 1, TIME = 3;  // what a frame is; 2 is a line

// The boxes of the report's arrays, in pre-order; what is within a box follows it. Number 0 is the root.
function boxesOf(data) {
  const n = data.depth.length + 1;
  const boxes = { n, kind: [-1], name: ["all"], detail: [""], place: [""], depth: new Int32Array(n), parent: new Int32Array(n).fill(-1), end: new Int32Array(n) };
  const trail = [0], paths = [""];  // of the boxes around the next one: their numbers, and the modules' names
  for (let i = 1; i < n; i++) {
    const depth = (boxes.depth[i] = data.depth[i - 1] + 1);
    trail.length = paths.length = depth;
    boxes.parent[i] = trail[depth - 1];
    const [kind, full, detail, file, line] = data.frame[i - 1] < 0 ? [-1, "(smaller ones)", ""] : data.frames[data.frame[i - 1]];
    const inside = kind === MODULE && full.startsWith(`${paths[depth - 1]}.`);
    boxes.kind.push(kind);
    boxes.name.push(inside ? full.slice(paths[depth - 1].length + 1) : file ? `${base(file)}:${line} ${full.slice(0, full.lastIndexOf(" ("))}` : bare(full));
    boxes.detail.push(detail);
    boxes.place.push(kind === MODULE ? full : file ? `${file}:${line}` : "");
    trail.push(i);
    paths.push(full);
  }
  for (let i = n - 1; i >= 0; i--) {
    boxes.end[i] = boxes.end[i] || i + 1;
    if (i) boxes.end[boxes.parent[i]] = Math.max(boxes.end[boxes.parent[i]], boxes.end[i]);
  }
  boxes.of = (own) => {
    const total = Float64Array.from([0, ...own]), start = new Float64Array(n), filled = new Float64Array(n);
    for (let i = n - 1; i > 0; i--) total[boxes.parent[i]] += total[i];
    for (let i = 1; i < n; i++) {
      const parent = boxes.parent[i];
      start[i] = start[parent] + filled[parent];
      filled[parent] += total[i];
    }
    return { total, start };
  };
  return boxes;
}

// views: [name, title, the report's arrays]; metrics: [name, title]. figures(of, boxes, metric): {total, start} of all
// boxes, and whatever the others need. said(figures, i, metric): texts on a box, of which the first is that on all.
// coloured(boxes, figures, i): its colour.
function flameGraph({ views, metrics, figures: figured, said: told, coloured }) {
  const canvas = el("canvas", { tabindex: "0", role: "application", "aria-label": "Flame graph: arrows go from box to box, Enter opens one, Escape closes it", "aria-describedby": "flame-said" });
  const said = el("p", { class: "said", id: "flame-said", "aria-live": "polite" });
  const holder = el("div", { class: "flame" }, canvas);
  const graphs = Object.fromEntries(views.map(([name, , of]) => [name, { of, boxes: boxesOf(of) }]));
  let by = views[0][0], metric = metrics[0][0], query = "";
  let boxes, figures, opened, at, drawn = [], matches = null;

  function about(i) {
    const [figure, ...more] = told(figures, i, metric);
    if (!i) return [`all: ${figure}`, ...more];
    const parts = [boxes.name[i]];
    if (boxes.detail[i]) parts[0] += ` (${boxes.detail[i]})`;
    parts.push(figure, ...more);
    if (boxes.place[i] && boxes.place[i] !== boxes.name[i]) parts.push(boxes.place[i]);
    return parts;
  }

  function choose() {
    boxes = graphs[by].boxes;
    figures = figured(graphs[by].of, boxes, metric);
    opened = at = 0;
    find();
  }

  function find() {
    matches = null;
    if (query) {
      matches = new Uint8Array(boxes.n);
      for (let i = 1; i < boxes.n; i++) matches[i] = `${boxes.name[i]} ${boxes.place[i]} ${boxes.detail[i]}`.toLowerCase().includes(query);
    }
    say();
    paint();
  }

  function say() {
    if (matches) {  // each nanosecond once: what is found within what is found is in it already
      const which = [];
      for (let i = 1; i < boxes.n; i++) if (matches[i]) { which.push(i); i = boxes.end[i] - 1; }
      said.textContent = `Found: ${told(figures, which, metric).join(" · ") || "nothing"}`;
    } else said.textContent = about(at).join(" · ");
  }

  function paint() {
    const width = holder.clientWidth || 900, ratio = onPaper ? 3 : window.devicePixelRatio || 1;
    const whole = figures.total[opened] || 1;
    const scale = width / whole, from = figures.start[opened];
    drawn = [];
    const above = [];
    for (let up = boxes.parent[opened]; up >= 0; up = boxes.parent[up]) above.push(up);
    for (const i of above) drawn.push([i, 0, width, boxes.depth[i]]);
    let deepest = boxes.depth[opened];
    for (let i = opened; i < boxes.end[opened];) {
      const wide = figures.total[i] * scale;
      if (wide < SMALLEST) { i = boxes.end[i]; continue; }
      drawn.push([i, (figures.start[i] - from) * scale, wide, boxes.depth[i]]);
      deepest = Math.max(deepest, boxes.depth[i]);
      i++;
    }
    const height = (deepest + 1) * ROW;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), colours = look();
    pen.scale(ratio, ratio);
    pen.font = '12px system-ui, "DejaVu Sans", sans-serif';
    pen.textBaseline = "middle";
    for (const [i, x, wide, depth] of drawn) {
      const y = depth * ROW;
      pen.globalAlpha = above.includes(i) ? 0.55 : matches && !matches[i] ? 0.35 : 1;
      pen.fillStyle = matches && matches[i] ? colours.found : coloured(boxes, figures, i);
      pen.fillRect(x, y, Math.max(wide - 0.6, 0.4), ROW - 1);
      if (i === at && document.activeElement === canvas) {
        pen.strokeStyle = colours.ink;
        pen.lineWidth = 2;
        pen.strokeRect(x + 1, y + 1, Math.max(wide - 2.6, 1), ROW - 3);
      }
      if (wide > 26) {
        pen.fillStyle = matches && matches[i] ? colours.paper : colours.ink;
        pen.fillText(fitted(pen, i ? boxes.name[i] : about(0)[0], wide - 8), x + 4, y + ROW / 2);
      }
    }
    pen.globalAlpha = 1;
  }

  function fitted(pen, text, room) {
    if (pen.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(text.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
    }
    return low ? text.slice(0, low) + "…" : "";
  }

  function under(event) {
    const y = Math.floor(event.offsetY / ROW);
    const hit = drawn.find(([, x, wide, depth]) => depth === y && event.offsetX >= x && event.offsetX < x + wide);
    return hit ? hit[0] : -1;
  }

  function go(i) {
    at = i;
    say();
    paint();
  }

  function zoom(i) {
    opened = i;
    go(i);
  }

  canvas.addEventListener("mousemove", (event) => {
    const i = under(event);
    hint(i < 0 ? "" : about(i).join("\n"), event);
  });
  canvas.addEventListener("mouseleave", () => hint(""));
  canvas.addEventListener("click", (event) => {
    const i = under(event);
    if (i >= 0) zoom(i);
  });
  canvas.addEventListener("focus", paint);
  canvas.addEventListener("blur", paint);
  canvas.addEventListener("keydown", (event) => {
    const next = {
      ArrowDown: () => at + 1 < boxes.end[at] ? heaviestWithin(at) : at,
      ArrowUp: () => Math.max(boxes.parent[at], 0),
      ArrowRight: () => (at && boxes.end[at] < boxes.end[boxes.parent[at]] ? boxes.end[at] : at),
      ArrowLeft: () => before(at),
    }[event.key];
    if (next) {
      const to = next();
      if (to < opened || to >= boxes.end[opened]) opened = to;  // out of what is open
      go(to);
    } else if (event.key === "Enter") zoom(at);
    else if (event.key === "Escape" || event.key === "Home") zoom(0);
    else return;
    event.preventDefault();
  });

  function heaviestWithin(i) {
    let best = i + 1;
    for (let child = i + 1; child < boxes.end[i]; child = boxes.end[child]) if (figures.total[child] > figures.total[best]) best = child;
    return best;
  }

  function before(i) {
    if (!i) return i;
    let last = i;
    for (let child = boxes.parent[i] + 1; child < i; child = boxes.end[child]) last = child;
    return last;
  }

  function choice(options, chosen, choosing) {
    const buttons = options.map(([value, title]) => el("button", { type: "button", "aria-pressed": String(value === chosen), on: { click: () => {
      buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === value)));
      choosing(value);
      choose();
    } } }, title));
    return buttons;
  }

  const tools = el("div", { class: "tools" },
    ...(views.length > 1 ? choice(views, by, (value) => { by = value; }) : []),
    el("span", { class: "gap" }),
    ...(metrics.length > 1 ? choice(metrics, metric, (value) => { metric = value; }) : []),
    el("button", { type: "button", on: { click: () => zoom(0) } }, "Whole"));
  choose();
  painters.push(paint);
  searchers.push((text) => { query = text; find(); });
  new ResizeObserver(() => paint()).observe(holder);
  return [tools, holder, said];
}
