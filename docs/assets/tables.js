// On a phone a table's rows are stacked (site.css), and each cell says its column.
for (const table of document.querySelectorAll("article table")) {
  const columns = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
  for (const row of table.tBodies[0].rows) {
    Array.from(row.cells, (cell, i) => (cell.dataset.column = columns[i]));
  }
}

// Short cells that begin with a figure stay in one line (site.css).
for (const cell of document.querySelectorAll("article td")) {
  cell.classList.toggle("figure", /^\d.{0,23}$/.test(cell.textContent));
}

// Long names may be broken where their words join, and nowhere else.
for (const code of document.querySelectorAll("article td code")) {
  if (code.textContent.length >= 28) {
    code.innerHTML = code.innerHTML.replace(/(?<=[a-z0-9])(::|_|\.(?=\w))|(?<=\[)/g, "$&<wbr>");
  }
}
