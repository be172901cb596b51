// The search field: whoever wants to hear of it is in `searchers`. / goes there, Escape empties it.

const search = document.getElementById("search");
let typing = 0;
search.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => searchers.forEach((find) => find(search.value.trim().toLowerCase())), 80);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && document.activeElement !== search) {
    search.focus();
    event.preventDefault();
  } else if (event.key === "Escape" && document.activeElement === search) {
    search.value = "";
    search.dispatchEvent(new Event("input"));
    search.blur();
  }
});
