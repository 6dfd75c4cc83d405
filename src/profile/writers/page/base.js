'use strict';
// Functions and data that all parts of the page use: the profile, HTML and SVG elements, numbers with units, colors.
const $ = (id) => document.getElementById(id);
const profile = JSON.parse($('profile').textContent);
const redraws = [];  // functions that redraw when the window's size or colors change
// True on a page of `treadle explain -o`, which shows estimates instead of runs, and what each optimizer pass changed.
const isPlan = profile.format === 'treadle-explain';
if (isPlan) profile.runs = {};

// Makes an HTML element. Strings among the children become text, never HTML, because names come from models.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(key, value);
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}
const svgNamespace = 'http://www.w3.org/2000/svg';
function svg(tag, attributes, text) {
  const element = document.createElementNS(svgNamespace, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

const isKnown = (x) => x !== undefined && x !== null;
const number = (x, digits = 1) =>
  isKnown(x) ? x.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits }) : '';
// Returns the number of decimals with which x has three significant digits; 0 if x is 100 or larger.
const digitsOf = (x) => { const size = Math.abs(x); return size >= 100 ? 0 : size >= 10 ? 1 : 2; };
const percent = (x, digits = 1) => isKnown(x) ? (x > 0 && x < 0.5 * 10 ** (-2 - digits) ? '< ' + number(10 ** -digits, digits) : number(100 * x, digits)) + ' %' : '';
const bytes = (x) => x >= 1e9 ? number(x / 1e9, 2) + ' GB' : x >= 1e6 ? number(x / 1e6, 2) + ' MB' : x >= 1e3 ? number(x / 1e3, 1) + ' kB' : number(x, 0) + ' B';
// Formats a number of floating-point operations. For operations per second, callers append "/s".
const flopText = (x) => { const [unit, factor] = [['G', 1e-9], ['M', 1e-6], ['k', 1e-3]].find(([, f]) => x * f >= 1) || ['', 1]; return `${number(x * factor, digitsOf(x * factor))} ${unit}FLOP`; };
const plural = (count, word) => `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;
const timeUnits = [['s', 1e-3, 10000], ['ms', 1, 1], ['\u00b5s', 1e3, 0]];
const unitOf = (largestMs) => timeUnits.find(([, , least]) => largestMs >= least) || timeUnits[2];
// Chooses one unit for all times of a column, so that they can be compared.
function timeScale(listMs) {
  const most = listMs.reduce((m, x) => isKnown(x) && x > m ? x : m, 0);
  const [unit, factor] = most > 0 && most < 1e-3 ? ['ns', 1e6] : unitOf(most);
  const digits = { ns: 0, '\u00b5s': 1 }[unit] ?? 3;
  return { unit, text: (x) => !isKnown(x) ? '' : x === 0 ? '\u2013' : number(x * factor, digits) };
}
function time(ms) {
  if (!isKnown(ms)) return '';
  const [unit, factor] = unitOf(ms);
  return `${number(ms * factor, digitsOf(ms * factor))} ${unit}`;
}
const shorten = (text, most) => text.length > most ? text.slice(0, Math.ceil(most / 2) - 1) + '\u2026' + text.slice(-Math.floor(most / 2)) : text;
// Allows line breaks in a long name after characters that separate its parts.
function breakable(text) {
  const element = document.createDocumentFragment();
  text.split(/(?<=[/._:])/).forEach((part, i) => element.append(...(i ? [make('wbr')] : []), part));
  return element;
}

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colours = ['--c0', '--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7'];
const allColours = ['--layer', ...colours, ...colours.map((name) => name.replace('--c', '--p'))];
const swatch = (colour) => make('i', { class: 'swatch', style: `background:var(${colour})` });
const legendOf = (id, entries) => $(id).replaceChildren(...entries.map(([name, colour]) => make('span', {}, swatch(colour), name)));
// inkOn() returns black or white, whichever contrasts more with a background color (contrast as defined by WCAG).
function luminance(colour) {
  const channel = (i) => { const c = parseInt(colour.slice(1 + 2 * i, 3 + 2 * i), 16) / 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  return 0.2126 * channel(0) + 0.7152 * channel(1) + 0.0722 * channel(2);
}
function inkOn(colour) {
  const [dark, light] = ['#0b0d11', '#ffffff'], contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return contrast(luminance(colour), luminance(dark)) > contrast(luminance(colour), 1) ? dark : light;
}
const inkVariable = (colour) => colour.replace('--', '--on-');
function setInks() {
  for (const colour of allColours) document.documentElement.style.setProperty(inkVariable(colour), inkOn(css(colour)));
}

/**
 * @param rows  arrays of cells, which are text or elements
 * @param head  titles of the columns; a title that begins with '#' marks a column of numbers
 */
function table(rows, head) {
  const isNumber = head.map((title) => title.startsWith('#'));
  const cell = (tag, i, content, attributes) => make(tag, { class: isNumber[i] ? 'n' : undefined, ...attributes }, content);
  const titles = head.map((title, i) => cell('th', i, title.replace(/^#/, ''), { scope: 'col' }));
  const body = make('tbody', {}, ...rows.map((row) => make('tr', {}, ...row.map((content, i) => cell('td', i, content)))));
  return make('table', {}, make('thead', {}, make('tr', {}, ...titles)), body);
}
/** Makes a list of names with their values, and leaves out unknown values. */
function facts(pairs) {
  const rows = pairs.filter(([, value]) => isKnown(value) && value !== '');
  return make('dl', { class: 'facts' }, ...rows.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]));
}
const scrolling = (name, element) => make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': name }, element);
/** Makes a bar of parts side by side, each as wide as its share. @param parts  objects with title, share, colour, text */
function stackedBar(label, parts) {
  const bar = make('div', { class: 'bar', role: 'img', 'aria-label': `${label}: ` + parts.map((p) => `${p.title} ${percent(p.share)}`).join(', ') });
  for (const part of parts) {
    if (!(part.share > 0)) continue;
    const piece = make('div', { style: `flex:${part.share} 0 0;background:var(${part.colour});color:var(${inkVariable(part.colour)})` });
    if (part.share > 0.12) piece.append(`${part.title} ${percent(part.share, 0)}`);
    withTip(piece, () => part.text);
    bar.append(piece);
  }
  return bar;
}

function tip(text, event) {
  $('tip').hidden = !text;
  if (!text) return;
  $('tip').textContent = text;
  const box = $('tip').getBoundingClientRect(), below = event.clientY + 18;
  $('tip').style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8)) + 'px';
  $('tip').style.top = (below + box.height > innerHeight ? event.clientY - box.height - 10 : below) + 'px';
}
function withTip(element, text) {
  element.addEventListener('mousemove', (e) => tip(text(e), e));
  element.addEventListener('mouseleave', () => tip(''));
  return element;
}

// Sets the canvas to the resolution of the screen, and its context to draw in CSS pixels.
function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth || 1000;
  canvas.style.height = height + 'px';
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return { context, width, height };
}
// Rounds x up to 1, 2 or 5 times a power of ten, for the lines of an axis.
function niceStep(x) {
  const power = 10 ** Math.floor(Math.log10(x));
  return power * ([1, 2, 5].find((k) => x / power <= k) || 10);
}

const shapeOf = (o) => o.shape ? (o.shape.length ? o.shape.join('\u00d7') : 'scalar') : '?';
function shapesOf(node) {
  const ins = node.inputs.filter((o) => !o.constant).map(shapeOf).join(', '), outs = node.outputs.map(shapeOf).join(', ');
  return ins === outs ? outs : ins + ' \u2192 ' + outs;
}
const nodes = profile.nodes;
const estimated = isPlan ? nodes.reduce((sum, n) => sum + (n.estimated_ms || 0), 0) : 0;
nodes.forEach((node, i) => {
  node.index = i;
  node.inputs = node.inputs || [];
  node.outputs = node.outputs || [];
  node.shapes = shapesOf(node);
  node.kernelText = [node.kernel, node.forms].filter(Boolean).join(' ');
  node.layers = node.layers || [];
  node.layer = node.layers[node.layers.length - 1] || '';
  node.pass = (node.passes || []).join(', ');
  if (estimated > 0 && isKnown(node.estimated_ms)) node.share = node.estimated_ms / estimated;
});
function operatorsOf(list) {
  const shares = new Map();
  for (const n of list) shares.set(n.op, (shares.get(n.op) || 0) + (n.share || 0));
  return [...shares].sort((a, b) => b[1] - a[1]).map(([op]) => ({ op }));
}
for (const node of nodes) if (node.parent !== undefined && node.parent >= 0) nodes[node.parent].hasBodies = true;
const critical = new Set(profile.critical_path ? profile.critical_path.nodes : []);
// The operators that take the most time have their own colors; all others share one color.
const operators = profile.operators || operatorsOf(nodes);
const opColour = new Map(operators.map((o, i) => [o.op, colours[Math.min(i, colours.length - 1)]]));
const colourOf = (node) => opColour.get(node.op) || '--c7';
// Names of the phases within kernels, sorted by total time, longest first.
const phaseTimes = new Map();
for (const node of nodes) for (const p of node.kernel_phases || []) phaseTimes.set(p.phase, (phaseTimes.get(p.phase) || 0) + p.mean_ms);
const phaseNames = [...phaseTimes.keys()].sort((a, b) => phaseTimes.get(b) - phaseTimes.get(a));
const phaseColour = (name) => `--p${Math.min(phaseNames.indexOf(name), 7)}`;
// Returns texts for the first three items of a list, and a text that says how many more there are.
const firstOf = (list, text) => [...list.slice(0, 3).map(text), ...(list.length > 3 ? [`and ${list.length - 3} more`] : [])];
const label = (node) => [
  `${node.name || '(unnamed)'}  ${node.op}`,
  node.ms && `${time(node.ms.median)}, ${percent(node.share)} of the run` + (critical.has(node.index) ? ', on the critical path' : ''),
  isKnown(node.estimated_ms) && `at least ${time(node.estimated_ms) || '0 ms'}`, isPlan && node.sources && `stands for ${shorten(node.sources.join(', '), 120)}`,
  ...firstOf(node.left_alone || [], (r) => `${r.pass} did no more: ${shorten(r.why, 140)}`),
  node.kernelText, node.pass && `by ${node.pass}`, shorten(node.shapes, 120)].filter(Boolean).join('\n');
