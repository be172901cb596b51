// The graph: boxes that open, and between them the edges, drawn anew whenever a box has changed its size.

const data = JSON.parse(document.getElementById("data").textContent);
const boxes = data.boxes, main = document.getElementById("main");
boxes.forEach((box) => (box.children || []).forEach((child) => { boxes[child].parent = box; }));
const about = el("p", { id: "about", hidden: true, role: "status" });

function say(box) {
  about.textContent = box.about;
  about.hidden = !box.about;
}

// The element of a box; what is in it is made when it is first opened.
function element(box) {
  const lines = box.lines.map((line, i) => el("span", { class: i === box.pattern && "pattern" }, line));
  const tell = () => say(box);
  box.head = el("button", { type: "button", "aria-expanded": box.children && "false", on: { click: () => toggle(box), focus: tell, mouseenter: tell } }, ...lines);
  box.head.box = box;
  box.element = el("div", { class: ["box", box.kind, box.pattern !== undefined && "named", box.found && "found"].filter(Boolean).join(" ") }, box.head);
  if (box.open) open(box);
  return box.element;
}

function level(box) {
  const last = box.children.length + 1;
  box.parts = {};
  box.svg = svg("svg", { "aria-hidden": "true" });
  box.level = el("div", { class: "level" }, box.svg);
  for (const [number, row, column] of box.cells) {
    const inner = number > 0 && number < last;
    const part = inner ? element(boxes[box.children[number - 1]]) : el("div", { class: "dot" });
    part.style.gridArea = `${row + 1} / ${column + 1}`;
    box.parts[number] = { part, row };
    box.level.append(part);
  }
  box.ways = {};
  for (const [source, column, first, rowsLast] of box.lanes) {
    box.ways[source] = el("div", { class: "lane" });
    box.ways[source].style.gridArea = `${first + 1} / ${column + 1} / ${rowsLast + 2}`;
    box.level.append(box.ways[source]);
  }
  sizes.observe(box.level);
  return box.level;
}

const sizes = new ResizeObserver((entries) => entries.forEach((entry) => draw(entry.target.box)));

function draw(box) {
  const gap = parseFloat(getComputedStyle(box.level).rowGap);
  const { left, top } = box.level.getBoundingClientRect();
  const place = (part) => part.getBoundingClientRect(), middle = (part) => (place(part).left + place(part).right) / 2 - left;
  const tops = [], bottoms = [];
  for (const { part, row } of Object.values(box.parts)) {
    tops[row] = place(part).top - top;
    bottoms[row] = Math.max(bottoms[row] || 0, place(part).bottom - top);
  }
  const bend = (x, end, row) => {
    const y = Math.max(bottoms[row], tops[row + 1] - gap), down = tops[row + 1];
    return `V${y}C${x} ${(y + down) / 2} ${end} ${(y + down) / 2} ${end} ${down}`;
  };
  const paths = box.edges.flatMap(([source, target]) => {
    const from = box.parts[source], to = box.parts[target], end = middle(to.part);
    let x = middle(from.part), way = `M${x} ${place(from.part).bottom - top}`;
    if (to.row > from.row + 1) {
      const lane = middle(box.ways[source]);
      way += `${bend(x, lane, from.row)}V${tops[to.row] - gap}`;
      x = lane;
    }
    const y = tops[to.row];
    return [svg("path", { d: way + bend(x, end, to.row - 1) }), svg("path", { class: "tip", d: `M${end} ${y}l-3 -6h6z` })];
  });
  box.svg.replaceChildren(...paths);
}

function open(box) {
  if (!box.children) return;
  if (!box.level) {
    box.element.append(level(box));
    box.level.box = box;
  }
  box.level.style.display = "";
  box.head.setAttribute("aria-expanded", "true");
}

function close(box) {
  box.level.style.display = "none";
  box.head.setAttribute("aria-expanded", "false");
}

const isOpen = (box) => box.head.getAttribute("aria-expanded") === "true";

function toggle(box) {
  if (box.children) (isOpen(box) ? close : open)(box);
  say(box);
}

function go(box, how) {
  box.head.focus(how);
  say(box);
}

// Opens what a box is in, and goes there.
function show(box) {
  const around = [];
  for (let up = box.parent; up && up.parent; up = up.parent) around.unshift(up);
  around.forEach(open);
  go(box, { preventScroll: true });
  box.head.scrollIntoView({ block: "center", inline: "center" });
}

let hits = [], at = -1;
const count = el("span", { class: "faint", id: "hits" });

searchers.push((query) => {
  document.querySelectorAll(".hit").forEach((each) => each.classList.remove("hit"));
  const layer = query.replace(/(^|\.)\d+(?=\.|$)/g, "$1*");  // what is in one layer is shown in the first of its like
  hits = query ? boxes.filter((box) => `${box.lines.join(" ")}\n${box.about}`.toLowerCase().includes(query) || (layer !== query && box.path.toLowerCase().includes(layer))) : [];
  at = -1;
  hits.forEach((box) => box.element && box.element.classList.add("hit"));
  count.textContent = query ? `${hits.length} found${hits.length ? "; Enter goes to the next" : ""}` : "";
});

const field = document.getElementById("search");
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !hits.length) return;
  at = (at + 1) % hits.length;
  show(hits[at]);
  hits[at].element.classList.add("hit");
  count.textContent = `${at + 1} of ${hits.length}`;
  field.focus({ preventScroll: true });
  event.preventDefault();
});

// Arrows go from box to box: up and down in order, to the right into one, to the left out of it.
main.addEventListener("keydown", (event) => {
  const box = event.target.box, { ctrlKey, metaKey, altKey } = event;
  if (!box || ctrlKey || metaKey || altKey) return;
  const heads = [...main.querySelectorAll(".box > button")].filter((head) => head.offsetParent);
  const i = heads.indexOf(box.head);
  let next = null;
  if (event.key === "ArrowDown") next = heads[i + 1];
  else if (event.key === "ArrowUp") next = heads[i - 1];
  else if (event.key === "ArrowRight" && box.children) {
    if (isOpen(box)) next = boxes[box.children[0]].head;
    else open(box);
  } else if (event.key === "ArrowLeft") {
    if (box.children && isOpen(box)) close(box);
    else if (box.parent.parent) next = box.parent.head;
  } else return;
  if (next) go(next.box);
  event.preventDefault();
});

function all(does) {
  boxes.slice(1).forEach((box) => { if (box.children && box.element) does(box); });
}

document.getElementById("head").append(
  el("div", { class: "tool" }, "genie graph"), el("h1", {}, data.title), ...data.summary.map((line) => el("p", { class: "note" }, line)));
document.getElementById("links").append(
  el("button", { type: "button", on: { click: () => all(open) } }, "Open all"),
  el("button", { type: "button", on: { click: () => all((box) => { if (!["graph", "phase"].includes(box.kind) && isOpen(box)) close(box); }) } }, "Close all"), count);
boxes[0].element = el("div", {});
boxes[0].head = el("span", {});
if (boxes[0].children) open(boxes[0]);
main.replaceChildren(boxes[0].element);
document.body.append(about);
