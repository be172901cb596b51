// Numbers as people read them; the same words as the terminal's (cli/units.py).

function three(value) {
  if (value >= 999.5) return value.toFixed(0);
  return value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

function seconds(value) {
  if (value === null || value === undefined) return "";
  if (value < 0) return "-" + seconds(-value);
  if (value === 0) return "0 s";
  if (value < 999.5e-9) return `${(value * 1e9).toFixed(0)} ns`;
  if (value < 999.5e-6) return `${three(value * 1e6)} µs`;
  if (value < 0.9995) return `${three(value * 1e3)} ms`;
  if (value < 999.5) return `${three(value)} s`;
  const whole = Math.round(value);
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60, rest = whole % 60;
  const two = (n) => String(n).padStart(2, "0");
  if (hours >= 100) return `${Math.floor(hours / 24)}d ${two(hours % 24)}h`;
  return hours ? `${hours}h ${two(minutes)}m` : `${minutes}m ${two(rest)}s`;
}

// With a decimal prefix: 80.1 G.
function amount(value) {
  if (!value) return "";
  const prefixes = ["", " k", " M", " G", " T", " P", " E"];
  for (let i = 0; i < prefixes.length; i++) {
    const scaled = value / 1000 ** i;
    if (Math.abs(scaled) < 999.5 || i === prefixes.length - 1) {
      return i ? three(scaled) + prefixes[i] : scaled.toFixed(0);
    }
  }
}

// Of things that are counted: 8.03 B parameters, not G.
const number = (value) => amount(value).replace(" G", " B");

function joules(value) {
  if (!value) return "0 J";
  for (const [limit, factor, prefix] of [[999.5e-9, 1e9, "n"], [999.5e-6, 1e6, "µ"], [0.9995, 1e3, "m"]]) {
    if (value < limit) return `${three(value * factor)} ${prefix}J`;
  }
  return value < 999.5 ? `${three(value)} J` : work(value, "J");
}

function work(value, unit) {
  const text = amount(value) || "0";
  return text.includes(" ") ? text + unit : `${text} ${unit}`;
}

function bytes(value) {
  if (!value) return "";
  const prefixes = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  for (let i = 0; i < prefixes.length; i++) {
    const scaled = value / 1024 ** i;
    if (Math.abs(scaled) < 999.5 || i === prefixes.length - 1) return `${i ? three(scaled) : scaled.toFixed(0)} ${prefixes[i]}`;
  }
}

// Exact with thousands separators up to a million, then with a prefix.
function count(value) {
  if (value === null || value === undefined) return "";
  return value < 1e6 ? String(value).replace(/\B(?=(\d{3})+$)/g, ",") : number(value);
}

function percent(part, whole) {
  if (!part || !whole) return "";
  const share = (100 * part) / whole;
  if (share < 0.05) return share > 0 ? "<0.1" : "";
  return share < 99.95 ? share.toFixed(1) : share.toFixed(0);
}

// In a sentence: "42 %".
const share = (part, whole) => `${(100 * part) / whole < 1 ? "<1" : Math.round((100 * part) / whole)} %`;

const counted = (n, what, many = what + "s") => `${count(n)} ${n === 1 ? what : many}`;
const bare = (name) => String(name).replace(/^aten::/, "");

// What files are called, by path: their names, with as many folders as tell them apart.
const called = new Map();
const own = (file) => String(file).split("/").slice(String(file).endsWith("/__init__.py") ? -2 : -1).join("/");
const base = (file) => called.get(file) || own(file);
function tellApart(files) {
  const alike = new Map();
  for (const file of new Set(files)) alike.set(base(file), [...(alike.get(base(file)) || []), file]);
  for (const same of [...alike.values()].filter((files) => files.length > 1)) {
    let names = [], length = 1;
    while (new Set(names).size < same.length) {
      length += 1;
      names = same.map((file) => file.split("/").slice(-length).join("/"));
    }
    same.forEach((file, i) => called.set(file, names[i]));
  }
}

const listed = (parts) => (parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts[parts.length - 1]}` : parts.join(""));

// assumption(row): what was assumed there, the first and the last time; in few digits, as float32's 1e-12 has many.
function assumption({ value, last = value }) {
  const [first, then] = [value, last].map((each) => (Number.isFinite(each) && !Number.isInteger(each) ? String(+each.toPrecision(4)) : typeof each === "boolean" ? (each ? "True" : "False") : String(each ?? "")));
  return first === then ? first : `${first}${first.includes("…") ? "," : " …"} ${then}`;
}
