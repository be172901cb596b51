// Tables that are sorted by their heads, and show what the search finds.

const FIRST = 25;  // rows shown before "all" is asked for

// {columns, fields, rows, rest} of the report, with its rows as objects.
function objects(table) {
  return table.rows.map((values) => Object.fromEntries(table.fields.map((field, i) => [field, values[i]])));
}

// What a cell shows of a field; `whole`: seconds that shares are of.
function written(row, [key, , text], whole) {
  const value = row[key];
  if (text === "share") return percent(value, whole);
  if (text === "rate") {
    const flops = (row.flops || 0) - (row.host_flops || 0);  // those have no time
    return value > 0 && flops ? amount(flops / value) : "";
  }
  return { count, seconds, amount, number, bytes, median: seconds }[text](value);
}

// What a column is sorted by.
function figure(row, [key, , text]) {
  if (text === "rate") return row[key] > 0 ? ((row.flops || 0) - (row.host_flops || 0)) / row[key] : 0;
  return row[key] ?? -1;
}

function cell(row, column, whole) {
  const facts = {};
  if (column[2] === "share" && whole && row[column[0]]) {
    facts.class = "share";
    facts.style = { "--part": Math.min(1, row[column[0]] / whole) };
  }
  return el("td", facts, written(row, column, whole));
}

// A head whose buttons sort: `sorted` is told the column's number, -1 for the names.
function head(name, columns, sorted) {
  const cells = [name, ...columns.map((column) => column[1])].map((title, i) =>
    el("th", { scope: "col" }, el("button", { type: "button", on: { click: () => sorted(i - 1) } }, title)));
  const say = (at, down) => cells.forEach((each, i) => {
    if (i - 1 === at) each.setAttribute("aria-sort", down ? "descending" : "ascending");
    else each.removeAttribute("aria-sort");
  });
  return { row: el("thead", {}, el("tr", {}, ...cells)), say };
}

// Which columns may be summed: what is within something else counts only once.
const SUMMED = new Set(["calls", "ops", "self_s", "time_s", "flops", "bytes", "predicted_s"]);

function sums(rows, rest, columns) {
  const found = { host_flops: 0, flops: 0 };
  for (const key of new Set([...columns.map((column) => column[0]).filter((key) => SUMMED.has(key)), "flops", "host_flops"])) {
    found[key] = rows.reduce((sum, row) => sum + (row[key] || 0), 0) + ((rest && rest[key]) || 0);
  }
  return found;
}

const adds = (column) => SUMMED.has(column[0]) && (column[2] !== "bytes" || column[0] === "bytes");

// A sorted table. named(row, query): what its first cell holds; words(row): what the search looks at; by: the field
// that it is sorted by at first; searched: whether the search leaves out what it does not find. The others are for rows
// that are not as the report's: how a cell is made and sorted, and rows are summed.
function sortedTable({ id, caption, name, table, whole, named, words, by, searched = true, rows = objects(table),
  columns = table.columns, made = (row, column) => cell(row, column, whole), order = figure, sum = sums, summed = adds }) {
  const texts = rows.map((row) => words(row).toLowerCase());
  const summedColumns = columns.map(summed);
  let at = columns.findIndex((column) => column[0] === by), down = true, all = false, query = "";
  const body = el("tbody"), foot = el("tfoot");
  const more = el("button", { type: "button", on: { click: () => { all = !all; fill(); } } });
  const { row: heads, say } = head(name, columns, (which) => {
    down = at === which ? !down : which >= 0;
    at = which;
    fill();
  });

  function fill() {
    const found = rows.map((_, i) => i).filter((i) => !query || texts[i].includes(query));
    const of = (i) => (at < 0 ? texts[i] : order(rows[i], columns[at]));
    found.sort((one, two) => {
      const a = of(one), b = of(two);
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1) || one - two;
    });
    const shown = all ? found : found.slice(0, FIRST);
    body.replaceChildren(...shown.map((i) =>
      el("tr", {}, el("td", {}, ...named(rows[i], query)), ...columns.map((column) => made(rows[i], column)))));
    const rest = query ? null : table.rest;
    const of_all = sum(found.map((i) => rows[i]), rest, columns);
    const what = query ? `${counted(found.length, "row")} found` : "all";
    if (summedColumns.some(Boolean)) foot.replaceChildren(el("tr", {}, el("td", {}, what),
      ...columns.map((column, i) => (summedColumns[i] ? made(of_all, column) : el("td")))));
    more.hidden = found.length <= FIRST;
    more.textContent = all ? "Fewer rows" : `All ${count(found.length)} rows`;
    say(at, down);
  }

  if (searched) searchers.push((text) => { query = text; fill(); });
  fill();
  const parts = [el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${caption}` },
    el("table", { id }, el("caption", { class: "unseen" }, caption), heads, body, foot)),
  el("div", { class: "tools" }, more)];
  if (table.rest) {
    const spent = table.rest.self_s ? `, ${seconds(table.rest.self_s)}` : "";
    parts.push(el("p", { class: "note" }, `${counted(table.rest.count, "further row")} (${id}${spent}) are in the sums and not shown; --json has them.`));
  }
  return parts;
}

// A small one of texts, as it is.
function plainTable(caption, titles, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${caption}` },
    el("table", {}, el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, ...titles.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((value) => (value instanceof Node ? value : el("td", {}, value))))))));
}
