// Long tables get a box above them: rows that do not hold all of its words are hidden.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table")) {
    const rows = [...table.querySelectorAll("tbody tr")];
    if (rows.length < 40) continue;
    const box = document.createElement("input");
    const count = document.createElement("span");
    box.type = "search";
    box.placeholder = "filter: a name, a state, a word of the note";
    box.setAttribute("aria-label", box.placeholder);
    const show = () => {
      const words = box.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = `${shown} of ${rows.length}`;
    };
    const bar = document.createElement("p");
    bar.className = "filter";
    bar.append(box, count);
    (table.closest(".table-wrapper") ?? table).before(bar);
    box.addEventListener("input", show);
    show();
  }
});
