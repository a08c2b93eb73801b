// What a page looks like, in numbers: which bars it has, what sticks out, what overlaps, what is not a number.
(() => {
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
  for (const chart of of(document, ".bars")) {
    for (const row of of(chart, ".row")) apart([...row.children]);
    for (const name of of(chart, ".row .name")) if (name.getBoundingClientRect().width < 80) found.outside.push(`no room for ${named(name)}`);
    for (const text of of(chart, ".name, strong")) found.textHeightLeast = Math.min(found.textHeightLeast, parseFloat(getComputedStyle(text).fontSize));
    for (const bar of of(chart, "rect.bar")) {
      const box = bar.getBoundingClientRect(), frame = bar.closest("svg").getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1) found.outside.push(named(bar));
    }
    found.plots[chart.dataset.plot] = [of(chart, "rect.bar").length, of(chart, ".whisker").length];
  }
  found.scripts = document.scripts.length;
  found.text = document.body.innerText;
  return found;
})()
