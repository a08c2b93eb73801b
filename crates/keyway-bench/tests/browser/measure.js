// What a page looks like, in numbers: which plots it has, what sticks out, what overlaps, what is not a number.
(() => {
  document.querySelectorAll("details").forEach(folded => { folded.open = true; });
  const of = (root, selector) => [...root.querySelectorAll(selector)];
  const named = element => `${element.tagName} ${element.getAttribute("class") || ""} "${element.textContent.slice(0, 40)}"`;
  const wide = document.documentElement.clientWidth;
  const found = { overflow: document.documentElement.scrollWidth - wide, outside: [], overlapping: [], notNumbers: [], textHeightLeast: 1000, plots: {} };

  for (const element of of(document.body, "*")) {
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.right > wide + 0.5 || box.left < -0.5) && !element.closest(".scroll table")) found.outside.push(named(element));
    for (const attribute of element.attributes) if (/NaN|Infinity|inf\b/.test(attribute.value)) found.notNumbers.push(`${named(element)}: ${attribute.name}="${attribute.value}"`);
  }
  const apart = elements => elements.forEach((one, at) => elements.slice(at + 1).forEach(other => {
    const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 2.5) found.overlapping.push(`${named(one)} and ${named(other)}`);
  }));
  for (const chart of of(document, "figure.chart")) {
    const drawing = chart.querySelector("svg[role=img]"), frame = drawing.getBoundingClientRect(), texts = of(drawing, "text");
    apart(texts);
    for (const text of texts) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 0.5 || box.right > frame.right + 0.5 || box.bottom > frame.bottom + 2 || box.top < frame.top - 2) found.outside.push(named(text));
      found.textHeightLeast = Math.min(found.textHeightLeast, box.height);
    }
    const grid = of(drawing, "g.grid line").map(line => line.getBoundingClientRect());
    const [left, right] = [Math.min(...grid.map(box => box.left)), Math.max(...grid.map(box => box.right))];
    for (const mark of of(drawing, "path.line, circle, rect.bar")) {
      const box = mark.getBoundingClientRect();
      if (box.left < left - 6 || box.right > right + 6 || box.top < frame.top || box.bottom > frame.bottom) found.outside.push(named(mark));
    }
    const plots = found.plots[chart.dataset.plot] ||= { charts: 0, lines: 0, marks: 0, bars: 0, spreads: 0, legends: 0, hollow: 0, ticks: 0 };
    plots.charts += 1;
    plots.lines += of(drawing, "path.line").filter(path => path.getTotalLength() > 20).length;
    plots.marks += of(drawing, "circle").length;
    plots.bars += of(drawing, "rect.bar").length;
    plots.hollow += of(drawing, "circle.hollow").length;
    plots.spreads += of(drawing, "line.spread").length;
    plots.ticks += of(drawing, "g.ticks text").length;
    plots.legends += of(chart, "ul.legend li").length;
  }
  for (const ratios of of(document, ".ratios")) {
    apart(of(ratios, ".axis span"));
    for (const row of of(ratios, ".row")) apart([...row.children]);
    const plots = found.plots[ratios.dataset.plot] ||= { charts: 0, rows: 0, bars: 0, values: 0 };
    plots.charts += 1;
    plots.rows += of(ratios, ".row").length;
    plots.bars += of(ratios, "rect.bar").length;
    plots.values += of(ratios, ".values strong").length;
  }
  found.rows = of(document, "#rows tbody tr").length;
  found.scripts = document.scripts.length;
  found.text = document.body.innerText;
  return found;
})()
