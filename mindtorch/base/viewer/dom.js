// Elements, colours and the hint. Text of the program's becomes text nodes, never markup.

function el(tag, facts = {}, ...inside) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (name === "on") for (const [event, does] of Object.entries(value)) made.addEventListener(event, does);
    else if (name === "style") for (const [property, set] of Object.entries(value)) made.style.setProperty(property, set);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...inside.filter((each) => each || each === 0));
  return made;
}

const drawings = document.getElementById("drawing").namespaceURI;

function svg(tag, facts = {}, ...inside) {
  const made = document.createElementNS(drawings, tag);
  for (const [name, value] of Object.entries(facts)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

// What is drawn, not laid out: again for another theme, width, or paper.
const painters = [];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
let onPaper = false;
const LIGHT = { box: "60% 76%", plain: "16% 86%", between: "10% 70%", area: "48% 62%", ink: "#1b1f24", faint: "#59616b", line: "#d8dce1", paper: "#ffffff", found: "#d100a8" };
const DARK = { box: "38% 33%", plain: "14% 26%", between: "8% 40%", area: "42% 48%", ink: "#f0f2f5", faint: "#a0a9b4", line: "#343b44", paper: "#14171b", found: "#ff6ee0" };
const look = () => (dark.matches && !onPaper ? DARK : LIGHT);

function repaint() {
  for (const paint of painters) paint();
}

function paintAlways(paint) {
  painters.push(paint);
  paint();
}

dark.addEventListener("change", repaint);
window.addEventListener("resize", repaint);
window.addEventListener("beforeprint", () => { onPaper = true; repaint(); });
window.addEventListener("afterprint", () => { onPaper = false; repaint(); });

// A hue for each kind of op and of memory; no hue is plain.
const HUES = {
  matmul: 215, attention: 262, conv: 235, rnn: 195, norm: 175, softmax: 60, elementwise: 130, reduction: 95, "data movement": 28,
  creation: 43, random: 320, loss: 345, embedding: 15, optimizer: 0, communication: 290, waiting: 355,
  parameters: 215, gradients: 262, "optimizer state": 0, activations: 130, temporaries: 43, buffers: 175,
  "key-value cache": 290, "inputs and other": 28, "gathered parameters": 235, "communication buffers": 320, scratch: 60,
};

function colour(kind, of = "box") {
  if (kind === "python" || kind === "launch") return `hsl(220 ${look().between})`;
  const hue = HUES[kind];
  return hue === undefined ? `hsl(220 ${look().plain})` : `hsl(${hue} ${look()[of]})`;
}

function swatch(kind, of = "box") {
  const made = el("span", { class: "swatch", "aria-hidden": "true" });
  paintAlways(() => made.style.setProperty("background", colour(kind, of)));
  return made;
}

const hintBox = document.getElementById("hint");

function hint(text, event) {
  hintBox.hidden = !text;
  if (!text) return;
  hintBox.textContent = text;
  const box = hintBox.getBoundingClientRect();
  hintBox.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 8))}px`;
  hintBox.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18}px`;
}

function section(id, title, ...inside) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...inside);
}

// What matches the search, marked.
function marked(text, query) {
  const at = query ? text.toLowerCase().indexOf(query) : -1;
  if (at < 0) return document.createTextNode(text);
  const parts = document.createDocumentFragment();
  parts.append(text.slice(0, at), el("mark", {}, text.slice(at, at + query.length)), text.slice(at + query.length));
  return parts;
}

const searchers = [];  // each is told what is searched for, in lower case
