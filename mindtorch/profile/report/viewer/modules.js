// The tree of modules: repeated layers are one row. Rows are in pre-order, each with its depth.

const OPENED = 30;  // rows: so far the tree is open at first

function moduleTree(table, whole) {
  const rows = objects(table), columns = table.columns;
  const parent = [], children = rows.map(() => []), roots = [], trail = [];
  rows.forEach((row, i) => {
    trail.length = row.depth;
    parent.push(row.depth ? trail[row.depth - 1] : -1);
    (row.depth ? children[parent[i]] : roots).push(i);
    trail.push(i);
  });
  const words = rows.map((row) => `${row.path} ${row.class}`.toLowerCase());
  const open = new Set();
  let at = null, down = true, query = "";

  function openTo(most) {
    open.clear();
    for (let depth = 0; ; depth++) {
      const here = rows.map((_, i) => i).filter((i) => rows[i].depth === depth && children[i].length);
      const shown = rows.filter((row) => row.depth <= depth + 1).length;
      if (!here.length || shown > most) return;
      here.forEach((i) => open.add(i));
    }
  }

  const body = el("tbody"), foot = el("tfoot");
  const { row: heads, say } = head("module", columns, (which) => {
    down = at === which ? !down : which >= 0;
    at = which;
    fill();
  });

  function ordered(list) {
    if (at === null) return list;  // as the program called them
    const of = (i) => (at < 0 ? rows[i].label.toLowerCase() : figure(rows[i], columns[at]));
    return [...list].sort((one, two) => {
      const a = of(one), b = of(two);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) || one - two;
    });
  }

  function name(i, isOpen, focused) {
    const row = rows[i], parts = [];
    if (children[i].length) {
      const label = `${row.label || "outside any module"}, ${counted(children[i].length, "part")}`;
      const button = el("button", { type: "button", class: "fold", "aria-expanded": String(isOpen), "aria-label": label, on: { click: () => turn(i) } }, isOpen ? "▾" : "▸");
      if (focused) queueMicrotask(() => button.focus());
      parts.push(button);
    } else parts.push(el("span", { class: "deeper" }));
    parts.push(marked(row.label || "(outside any module)", query));
    if (row.repeated > 1) parts.push(el("b", {}, ` ×${row.repeated}`));
    if (row.class && row.class !== row.label) parts.push(el("span", { class: "faint" }, " ", marked(row.class, query)));
    return parts;
  }

  function turn(i) {
    if (open.has(i)) open.delete(i); else open.add(i);
    fill(i);
  }

  function fill(focused = -1) {
    const found = new Set();  // what the search finds, with all that it is in
    if (query) words.forEach((text, i) => { if (text.includes(query)) for (let up = i; up >= 0; up = parent[up]) found.add(up); });
    const made = [], todo = [...ordered(roots)].reverse();
    while (todo.length) {
      const i = todo.pop();
      if (query && !found.has(i)) continue;
      const isOpen = query ? children[i].some((child) => found.has(child)) : open.has(i);
      made.push(el("tr", {}, el("td", { style: { "padding-left": `${0.3 + 1.1 * rows[i].depth}rem` } }, ...name(i, isOpen, i === focused)), ...columns.map((column) => cell(rows[i], column, whole))));
      if (isOpen) todo.push(...ordered(children[i]).reverse());
    }
    body.replaceChildren(...made);
    const own = { host_flops: 0 };
    const all = (field) => rows.reduce((sum, row) => sum + row[field], (table.rest && table.rest[field]) || 0);
    own.self_s = own.total_s = all("self_s");
    own.flops = all("self_flops");
    foot.replaceChildren(el("tr", {}, el("td", {}, "all"), ...columns.map((column) =>
      (["self_s", "total_s", "flops"].includes(column[0]) ? cell(own, column, whole) : el("td")))));
    say(at, down);
  }

  openTo(OPENED);
  fill();
  searchers.push((text) => { query = text; fill(); });
  const deep = children.some((list) => list.length);
  const parts = [el("div", { class: "tools" },
    deep && el("button", { type: "button", on: { click: () => { openTo(Infinity); fill(); } } }, "Open all"),
    deep && el("button", { type: "button", on: { click: () => { openTo(OPENED); fill(); } } }, "Close"),
    el("button", { type: "button", on: { click: () => { at = null; fill(); } } }, "In the order of calls")),
  el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table: Modules" },
    el("table", { id: "module-table" }, el("caption", { class: "unseen" }, "Modules"), heads, body, foot))];
  if (table.rest) parts.push(el("p", { class: "note" }, `${counted(table.rest.count, "small module")} are in the sums and not shown; --json has them.`));
  return parts;
}

// The module, layers together, in which much of the time went: as deep as it is most of it. {path, row}, or null.
function heaviest(table, whole) {
  let best = null;
  const trail = [];
  for (const row of objects(table)) {
    if (best && row.depth <= best.row.depth) break;
    trail.length = row.depth;
    trail.push(row.label);
    if (row.label && row.total_s > 0.4 * whole && row.depth === (best ? best.row.depth + 1 : 0)) best = { row, path: trail.join(".") };
  }
  return best;
}
