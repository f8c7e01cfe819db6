// What a reader sees of the pages in the frames. Their own policy forbids scripts; this one is beside them.
const numbers = text => (text.match(/[0-9.]+/g) || []).slice(0, 3).map(Number);

function luminance(colour) {
  const [r, g, b] = numbers(colour).map(part => {
    const share = part / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [more, less] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (more + 0.05) / (less + 0.05);
}

function isOutside(text) {
  const box = text.getBBox(), all = text.ownerSVGElement.viewBox.baseVal;
  return box.x < 0 || box.y < 0 || box.x + box.width > all.width || box.y + box.height > all.height;
}

function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow;
  const style = element => view.getComputedStyle(element);
  const paper = style(page.body).backgroundColor;
  const says = element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
  const texts = [...page.body.querySelectorAll("*")].filter(each => each.getClientRects().length && says(each));
  const letters = [...page.querySelectorAll("svg text")];
  const lines = [...page.querySelectorAll("svg path[class^=s]")];
  const zoom = svg => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  const named = element => element.getAttribute("aria-label") || (element.getAttribute("aria-labelledby") || "")
    .split(" ").map(id => page.getElementById(id)?.textContent ?? "").join("");
  return {
    paper: numbers(paper),
    wide: page.documentElement.scrollWidth,
    texts: texts.length,
    lines: lines.length,
    text: Math.min(...texts.map(each => contrast(style(each)[each.closest("svg") ? "fill" : "color"], paper))),
    line: Math.min(...lines.map(each => contrast(style(each).stroke, paper))),
    outside: letters.filter(isOutside).map(each => each.textContent),
    letter: Math.min(...letters.map(each => parseFloat(style(each).fontSize) * zoom(each.ownerSVGElement))),
    scripts: page.scripts.length,
    loaded: view.performance.getEntriesByType("resource").map(each => each.name),
    unnamed: [...page.querySelectorAll("[role=img],[role=region]")].filter(each => !named(each)).length,
    said: page.body.innerText,
  };
}

onload = () => {
  const found = [...document.querySelectorAll("iframe")].map(look);
  document.getElementById("found").textContent = JSON.stringify(found);
};
