'use strict';
const profile = JSON.parse(document.getElementById('profile').textContent);
const $ = (id) => document.getElementById(id);
const colours = ['--c0', '--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7'];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Elements are made with text nodes only: names come from models.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) value !== undefined && element.setAttribute(key, value);
  for (const child of children) child !== null && child !== undefined && element.append(child);
  return element;
}
const number = (x, digits = 1) => x === undefined || x === null ? '' : x.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
const ms = (x) => x === undefined || x === null ? '' : number(x, x >= 100 ? 1 : x >= 1 ? 3 : 4);
const percent = (x, digits = 1) => x === undefined || x === null ? '' : number(100 * x, digits) + ' %';
const bytes = (x) => x >= 1e9 ? number(x / 1e9, 2) + ' GB' : x >= 1e6 ? number(x / 1e6, 2) + ' MB' : x >= 1e3 ? number(x / 1e3, 1) + ' kB' : number(x, 0) + ' B';
const plural = (count, word) => `${count.toLocaleString('en')} ${word}${count === 1 ? '' : 's'}`;
const shapeOf = (o) => o.shape ? (o.shape.length ? o.shape.join('\u00d7') : 'scalar') : '?';
function shapesOf(node) {
  const ins = node.inputs.filter((o) => !o.constant).map(shapeOf).join(', '), outs = node.outputs.map(shapeOf).join(', ');
  return ins === outs ? outs : ins + ' \u2192 ' + outs;
}
function table(rows, head) {
  const element = make('table');
  if (head) element.append(make('thead', {}, make('tr', {}, ...head.map((h, i) => make('th', { scope: 'col', class: i ? 'n' : undefined }, h)))));
  const body = make('tbody');
  for (const row of rows) body.append(make('tr', {}, ...row.map((cell, i) => make('td', { class: i ? 'n' : undefined }, cell))));
  element.append(body);
  return element;
}
function tip(text, event) {
  $('tip').hidden = !text;
  if (!text) return;
  $('tip').textContent = text;
  const box = $('tip').getBoundingClientRect();
  $('tip').style.left = Math.min(event.clientX + 14, innerWidth - box.width - 8) + 'px';
  $('tip').style.top = (event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 18) + 'px';
}

const nodes = profile.nodes;
nodes.forEach((node, i) => { node.index = i; node.inputs = node.inputs || []; node.outputs = node.outputs || []; node.shapes = shapesOf(node); node.kernelText = [node.kernel, node.forms].filter(Boolean).join(' '); });
// The operators with the most time have a colour each, the others share one.
const opColour = new Map((profile.operators || []).map((o, i) => [o.op, colours[Math.min(i, colours.length - 1)]]));
const colourOf = (node) => opColour.get(node.op) || '--c7';
const label = (node) => `${node.name || '(unnamed)'}  ${node.op}` + (node.ms ? `\n${ms(node.ms.median)} ms, ${percent(node.share)} of the run` : '') +
  (node.kernelText ? `\n${node.kernelText}` : '') + (node.passes ? `\nby ${node.passes.join(', ')}` : '') + (node.shapes ? `\n${node.shapes}` : '');

function showHeadline() {
  const runs = profile.runs, environment = profile.environment || {}, model = profile.model || 'session';
  $('title').textContent = model.split('/').pop();
  document.title = 'Profile of ' + model.split('/').pop();
  $('subtitle').textContent = `${plural(runs.recorded || 0, 'recorded run')} after ${runs.warmup || 0} to warm up` +
    (environment.threads ? `, ${plural(environment.threads, 'thread')}` : '') + (environment.options ? `; ${environment.options}` : '');
  const figure = (value, text) => $('headline').append(make('div', { class: 'figure' }, make('b', {}, value), make('span', {}, text)));
  if (runs.ms) figure(ms(runs.ms.median) + ' ms', `a run (median); p10 ${ms(runs.ms.p10)}, p90 ${ms(runs.ms.p90)}`);
  const flops = nodes.reduce((sum, n) => sum + (n.flops || 0) * (n.calls || 0), 0);
  if (flops > 0 && runs.ms) {
    const rate = flops / runs.ms.median / 1e6;
    figure(number(rate, 1) + ' GFLOP/s', `${number(flops / 1e9, 3)} GFLOP a run` + (profile.peaks ? `; the machine's peak is ${number(profile.peaks.gflops, 0)}` : ''));
  }
  if (profile.memory && profile.memory.peak_bytes) figure(bytes(profile.memory.peak_bytes), 'memory at the peak');
  if (runs.load_ms) figure(ms(runs.load_ms) + ' ms', `to load; first run ${ms(runs.first_run_ms)} ms`);
}

// The runtime's own parts, small as they are, share one colour.
const partColours = { compute: '--c0', memory: '--c1', moves: '--c2', unknown: '--c3', control_flow: '--c4', dispatch: '--c5', other_numbers: '--c6' };
function showWhere() {
  const parts = profile.where || [], colourOfPart = (part) => `var(${partColours[part.id] || '--c7'})`;
  parts.forEach((part) => {
    const colour = colourOfPart(part);
    const piece = make('div', { style: `flex:${part.share};background:${colour}` });
    piece.addEventListener('mousemove', (e) => tip(`${part.title}: ${ms(part.ms)} ms, ${percent(part.share)}`, e));
    piece.addEventListener('mouseleave', () => tip(''));
    $('where-bar').append(piece);
  });
  $('where-bar').setAttribute('aria-label', parts.map((p) => `${p.title} ${percent(p.share)}`).join(', '));
  const swatch = (part) => make('i', { class: 'swatch', style: `background:${colourOfPart(part)}` });
  const rows = parts.map((p) => [make('span', {}, swatch(p), p.title), ms(p.ms), percent(p.share)]);
  rows.push(['together', ms(parts.reduce((s, p) => s + p.ms, 0)), percent(parts.reduce((s, p) => s + p.share, 0))]);
  $('where-table').append(table(rows, ['part', 'ms', 'of the run']));
  const path = profile.critical_path;
  if (path) $('where-table').append(make('p', {}, `Critical path: ${path.nodes.length} of ${plural(profile.memory.steps.length, 'node')}, ${ms(path.ms)} of their ${ms(path.all_nodes_ms)} ms. With nodes at once, a run may be ${percent(1 - path.ms / path.all_nodes_ms, 0)} shorter at best.`));
}

function showLoad() {
  const load = profile.load || [];
  if (!load.length) return;
  const all = load.reduce((sum, phase) => sum + (phase.parent === undefined ? phase.ms : 0), 0);
  const rows = [], add = (parent, depth) => load.forEach((phase, i) => {
    if ((phase.parent === undefined ? -1 : phase.parent) !== parent || phase.ms < all / 200) return;
    rows.push([make('span', { style: `padding-left:${depth * 18}px` }, phase.name), phase.calls.toLocaleString('en'), ms(phase.ms), percent(phase.ms / all)]);
    add(i, depth + 1);
  });
  add(-1, 0);
  $('load').append(make('h3', {}, 'Loading'), table(rows, ['phase', 'times', 'ms', 'of loading']));
}

function showRanges() {
  const ranges = profile.ranges || [];
  if (!ranges.length) { const option = $('which').querySelector('[value="ranges"]'); if (option) option.remove(); return; }
  const rows = [], add = (parent, depth) => ranges.forEach((r, i) => {
    if ((r.parent === undefined ? -1 : r.parent) !== parent) return;
    rows.push([make('span', { style: `padding-left:${depth * 18}px` }, r.name), r.calls.toLocaleString('en'), ms(r.ms.median), ms(r.total_ms), ms(r.self_ms), ms(r.runs_ms)]);
    add(i, depth + 1);
  });
  add(-1, 0);
  $('ranges').append(make('h3', {}, 'Ranges of the program'), table(rows, ['range', 'calls', 'ms (median)', 'all ms', 'own ms', 'recorded runs in it, ms']));
}

function showFixes() {
  const list = profile.remedies || [];
  for (const [i, remedy] of list.slice(0, 3).entries()) {
    const copy = make('button', { type: 'button', 'aria-label': 'Copy the command' }, 'copy');
    copy.addEventListener('click', () => navigator.clipboard && navigator.clipboard.writeText(remedy.command).then(() => { copy.textContent = 'copied'; }));
    $('remedies').append(make('div', { class: 'remedy' }, make('p', {}, make('b', {}, `${i + 1}. ${remedy.title[0].toUpperCase()}${remedy.title.slice(1)}: ${number(100 * remedy.effect, 0)} % less ${remedy.saves}`)),
      make('p', {}, remedy.evidence), make('p', {}, make('code', {}, remedy.command), ' ', copy)));
  }
  if (!list.length) $('remedies').append(make('p', {}, profile.remedies ? 'Nothing that was tried makes a difference beyond the noise.' : 'No remedies were tried for this profile.'));
  const slow = nodes.filter((n) => n.bound_ms !== undefined && n.ms && n.ms.median > n.bound_ms).map((n) => ({ n, lost: n.ms.median - n.bound_ms }));
  slow.sort((a, b) => b.lost - a.lost);
  if (!slow.length) return;
  $('recoverable').append(make('h3', {}, 'Nodes furthest from what the machine reaches'),
    table(slow.slice(0, 5).map(({ n, lost }) => [n.name + '  (' + n.op + ')', ms(n.ms.median), ms(n.bound_ms), n.bound, ms(lost)]),
      ['node', 'ms', 'least possible ms', 'bound by', 'ms above it']));
}

const columns = [
  { key: 'name', title: 'node', text: (n) => n.name || '(unnamed)', class: 'name' }, { key: 'op', title: 'operator', text: (n) => n.op },
  { key: 'kernelText', title: 'kernel', text: (n) => n.kernelText }, { key: 'shapes', title: 'shapes', text: (n) => n.shapes.length > 90 ? n.shapes.slice(0, 88) + '\u2026' : n.shapes, class: 'shape' },
  { key: 'calls', title: 'calls', text: (n) => n.calls === undefined ? '' : number(n.calls, n.calls % 1 ? 1 : 0), n: true },
  { key: 'median', title: 'ms', text: (n) => ms(n.ms && n.ms.median), value: (n) => n.ms && n.ms.median, n: true },
  { key: 'spread', title: '\u00b1', text: (n) => ms(n.ms && (n.ms.p90 - n.ms.p10) / 2), value: (n) => n.ms && n.ms.p90 - n.ms.p10, n: true },
  { key: 'share', title: 'of the run', n: true }, { key: 'gflops', title: 'GFLOP/s', text: (n) => number(n.gflops), n: true },
  { key: 'gb_per_s', title: 'GB/s', text: (n) => number(n.gb_per_s), n: true },
  { key: 'of_peak', title: '% of peak', text: (n) => n.of_peak === undefined ? '' : number(100 * n.of_peak, 0) + ' ' + n.bound, n: true }];
const view = { sort: 'share', down: true, filter: '', group: '', all: false, chosen: -1 };
const valueOf = (column, node) => column.value ? column.value(node) : node[column.key];

function shareCell(share) {
  const bar = make('span', { class: 'share' }, make('i', { style: `width:${Math.max(0, Math.min(1, share || 0)) * 100}%` }));
  return make('td', { class: 'n' }, bar, make('span', { class: 'part' }, percent(share)));
}
function nodeRow(node) {
  const row = make('tr', { 'data-node': node.index, class: node.index === view.chosen ? 'chosen' : undefined });
  for (const c of columns) row.append(c.key === 'share' ? shareCell(node.share) : make('td', { class: c.n ? 'n' : c.class }, c.text(node)));
  if (node.sources) row.firstChild.title = 'stands for ' + node.sources.join(', ') + (node.passes ? '; by ' + node.passes.join(', ') : '');
  return row;
}
function sorted(list) {
  const column = columns.find((c) => c.key === view.sort), sign = view.down ? -1 : 1;
  return [...list].sort((a, b) => {
    const x = valueOf(column, a), y = valueOf(column, b);
    if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
    return sign * (typeof x === 'string' ? x.localeCompare(y) : x - y);
  });
}
function showNodes() {
  const limit = 60, words = view.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = nodes.filter((n) => words.every((w) => `${n.name} ${n.op} ${n.kernelText} ${n.shapes} ${(n.sources || []).join(' ')} ${(n.passes || []).join(' ')}`.toLowerCase().includes(w)));
  const head = make('tr', {}, ...columns.map((c) => {
    const on = view.sort === c.key, button = make('button', { type: 'button' }, c.title + (on ? (view.down ? ' \u25be' : ' \u25b4') : ''));
    button.addEventListener('click', () => { view.down = on ? !view.down : Boolean(c.n); view.sort = c.key; showNodes(); $('node-table').querySelectorAll('th button')[columns.indexOf(c)].focus(); });
    return make('th', { scope: 'col', class: c.n ? 'n' : undefined, 'aria-sort': on ? (view.down ? 'descending' : 'ascending') : undefined }, button);
  }));
  const body = make('tbody');
  let shown = 0;
  const add = (node) => { if (view.all || shown < limit) { body.append(nodeRow(node)); ++shown; } };
  if (!view.group) {
    sorted(found).forEach(add);
  } else {
    const groups = new Map();
    for (const n of found) { const key = n[view.group] || '(none)'; groups.has(key) ? groups.get(key).push(n) : groups.set(key, [n]); }
    const sum = (list) => list.reduce((s, n) => s + (n.share || 0), 0), time = (list) => list.reduce((s, n) => s + (n.mean_ms || 0), 0);
    for (const [key, list] of [...groups].sort((a, b) => sum(b[1]) - sum(a[1]))) {
      const row = make('tr', { class: 'group' }, make('td', { colspan: 5 }, `${key}  (${plural(list.length, 'node')})`), make('td', { class: 'n' }, ms(time(list))), make('td'));
      row.append(shareCell(sum(list)), make('td', { colspan: 3 }));
      body.append(row);
      sorted(list).forEach(add);
    }
  }
  $('node-table').replaceChildren(make('thead', {}, head), body);
  $('node-count').textContent = `${plural(found.length, 'node')}, ${percent(found.reduce((s, n) => s + (n.share || 0), 0))} of the run`;
  $('more').hidden = shown >= found.length;
  $('above').hidden = !found.some((n) => n.bound === 'compute' && n.of_peak > 1);
  $('more').textContent = `Show all ${found.length} nodes`;
}
function choose(index) {
  view.chosen = index; view.filter = $('filter').value = ''; view.all = true;
  showNodes(); drawTime();
  document.querySelectorAll('#drawing rect').forEach((r) => r.classList.toggle('chosen', Number(r.dataset.node) === index));
  const row = document.querySelector(`#node-table tr[data-node="${index}"]`);
  if (row) row.scrollIntoView({ block: 'center' });
}

// A canvas in the screen's pixels.
function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth || 1000;
  canvas.style.height = height + 'px'; canvas.width = width * ratio; canvas.height = height * ratio;
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.font = '12px system-ui, sans-serif'; context.textBaseline = 'middle';
  return { context, width, height };
}

const rangeOf = (event) => event.node < -1 ? (profile.ranges || [])[-2 - event.node] : undefined;
const rangeColour = (name) => colours[[...name].reduce((h, c) => (h * 31 + c.charCodeAt(0)) >>> 0, 7) % (colours.length - 1)];
const phaseOf = (event) => event.phase >= 0 ? ((nodes[event.node] || {}).kernel_phases || [])[event.phase] : undefined;
const titleOf = (event) => { if (phaseOf(event)) return phaseOf(event).phase; const node = nodes[event.node], range = rangeOf(event); return node ? node.name || node.op : range ? range.name : event.node === nodes.length ? 'run' : 'wait'; };
const time = { from: 0, to: 1, lanes: [], end: 1, boxes: [] };
function loadTime() {
  const which = $('which').value, found = (profile.timeline || {})[which], rangeView = which === 'ranges';
  if (!found || !(found.node || found.range).length) { $('timeline').hidden = true; return; }
  // A range's events are negative: -2 - its index; -1 is waiting; of the overview, runs have the number of nodes.
  const data = rangeView ? { ...found, node: found.range.map((r) => r < 0 ? nodes.length : -2 - r), events: found.range.length } : found;
  const lanes = new Map();
  time.end = 0;
  for (let i = 0; i < data.node.length; ++i) {
    const key = data.thread[i], start = data.start_us[i], end = start + data.duration_us[i];
    if (!lanes.has(key)) lanes.set(key, { thread: key, rows: [], open: [] });
    const lane = lanes.get(key);
    while (lane.open.length && lane.open[lane.open.length - 1] <= start) lane.open.pop();
    const depth = lane.open.length;
    (lane.rows[depth] = lane.rows[depth] || []).push({ start, end, node: data.node[i], phase: data.phase ? data.phase[i] : -1 });
    lane.open.push(end); time.end = Math.max(time.end, end);
  }
  time.lanes = [...lanes.values()]; time.from = 0; time.to = time.end * 1.005;
  $('time').setAttribute('aria-label', `Timeline of ${plural(data.events, 'event')} on ${plural(time.lanes.length, 'thread')}, ${number(time.end, 1)} microseconds`);
  $('time-status').textContent = data.events > data.node.length ? `the first ${data.node.length.toLocaleString('en')} of ${data.events.toLocaleString('en')} events` : '';
  drawTime();
}
function drawTime() {
  if (!time.lanes.length) return;
  const row = 24, gap = 20, axis = 24, height = axis + time.lanes.reduce((s, l) => s + l.rows.length * row + gap, 0) + 6;
  const { context: c, width } = prepare($('time'), height);
  const scale = width / (time.to - time.from), text = css('--text'), soft = css('--soft'), palette = new Map(colours.map((n) => [n, css(n)]));
  const step = niceStep((time.to - time.from) / (width / 110));
  c.fillStyle = soft; c.strokeStyle = css('--line');
  for (let t = Math.ceil(time.from / step) * step; t <= time.to; t += step) {
    const x = (t - time.from) * scale;
    c.beginPath(); c.moveTo(x, axis); c.lineTo(x, height); c.stroke();
    c.fillText(step >= 100 ? number(t / 1000, step >= 1000 ? 0 : 1) + ' ms' : number(t, step >= 1 ? 0 : 2) + ' \u00b5s', x + 3, 12);
  }
  time.boxes = [];
  let y = axis;
  for (const lane of time.lanes) {
    c.fillStyle = soft; c.fillText((profile.timeline.threads || [])[lane.thread] || 'thread', 4, y + 8); y += gap - 2;
    for (const events of lane.rows) {
      let last = -1;  // pixels that have a box already
      for (let i = firstVisible(events, time.from); i < events.length && events[i].start < time.to; ++i) {
        const e = events[i], x0 = (e.start - time.from) * scale, x1 = Math.max((e.end - time.from) * scale, x0 + 0.7);
        if (x1 < last + 0.5) continue;
        last = x1;
        const node = nodes[e.node], w = Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.6 : 0), 0.7);
        c.fillStyle = palette.get(phaseOf(e) ? rangeColour(phaseOf(e).phase) : node ? colourOf(node) : rangeOf(e) ? rangeColour(rangeOf(e).name) : '--c7');
        c.fillRect(x0, y, w, row - 3);
        if (node && node.index === view.chosen) { c.strokeStyle = text; c.lineWidth = 2; c.strokeRect(x0, y, w, row - 3); c.lineWidth = 1; }
        time.boxes.push({ x0, x1, y, e });
        if (w > 46) { c.save(); c.beginPath(); c.rect(Math.max(x0, 0), y, x1 - Math.max(x0, 0) - 3, row); c.clip(); c.fillStyle = '#fff'; c.fillText(titleOf(e), Math.max(x0, 0) + 4, y + (row - 3) / 2); c.restore(); }
      }
      y += row;
    }
    y += 2;
  }
}
const niceStep = (x) => { const p = 10 ** Math.floor(Math.log10(x)); return p * (x / p <= 1 ? 1 : x / p <= 2 ? 2 : x / p <= 5 ? 5 : 10); };
function firstVisible(events, from) {
  let low = 0, high = events.length;
  while (low < high) { const mid = (low + high) >> 1; events[mid].end < from ? low = mid + 1 : high = mid; }
  return low;
}
function zoom(factor, at = 0.5) {
  const middle = time.from + at * (time.to - time.from), span = Math.min(Math.max((time.to - time.from) * factor, 0.05), time.end * 1.005);
  time.from = Math.max(0, Math.min(middle - at * span, time.end * 1.005 - span)); time.to = time.from + span;
  drawTime();
}
function move(part) {
  const span = time.to - time.from;
  time.from = Math.max(0, Math.min(time.from + part * span, time.end * 1.005 - span)); time.to = time.from + span;
  drawTime();
}
function boxAt(event) {
  const box = $('time').getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return time.boxes.find((b) => y >= b.y && y < b.y + 22 && x >= b.x0 - 1 && x <= b.x1 + 1);
}
function listenToTime() {
  const canvas = $('time');
  let drag = null, moved = false;
  canvas.addEventListener('wheel', (e) => { if (e.ctrlKey) return; e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, (e.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth); }, { passive: false });
  canvas.addEventListener('pointerdown', (e) => { drag = e.clientX; moved = false; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener('pointermove', (e) => {
    if (drag !== null && Math.abs(e.clientX - drag) > 2) { moved = true; tip(''); move((drag - e.clientX) / canvas.clientWidth); drag = e.clientX; return; }
    const hit = boxAt(e);
    tip(hit ? `${phaseOf(hit.e) ? phaseOf(hit.e).phase + ' of ' : ''}${nodes[hit.e.node] ? label(nodes[hit.e.node]) : hit.e.node === -1 ? 'waiting for another job' : titleOf(hit.e)}\nhere: ${number(hit.e.end - hit.e.start, 2)} \u00b5s from ${number(hit.e.start, 2)}` : '', e);
  });
  canvas.addEventListener('pointerup', (e) => { const hit = boxAt(e); drag = null; if (!moved && hit && nodes[hit.e.node]) choose(hit.e.node); });
  canvas.addEventListener('pointerleave', () => tip(''));
  canvas.addEventListener('keydown', (e) => {
    const act = { ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1.4), 0: () => zoom(1e9) }[e.key];
    if (act) { e.preventDefault(); act(); }
  });
  $('zoom-in').onclick = () => zoom(0.6); $('zoom-out').onclick = () => zoom(1.7); $('zoom-all').onclick = () => zoom(1e9);
  $('which').onchange = loadTime;
  const legend = (profile.operators || []).slice(0, 7).map((o) => [o.op, opColour.get(o.op)]);
  if ((profile.operators || []).length > 7) legend.push(['others', '--c7']);
  for (const [name, colour] of legend) $('time-legend').append(make('span', {}, make('i', { class: 'swatch', style: `background:var(${colour})` }), name));
}

const svgNs = 'http://www.w3.org/2000/svg';
function svg(tag, attributes, text) {
  const element = document.createElementNS(svgNs, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function showRoofline() {
  const dots = nodes.filter((n) => n.flops > 0 && n.bytes > 0 && n.gflops > 0), peaks = profile.peaks;
  if (!dots.length || !peaks || !peaks.bandwidth.length) { $('roofline').hidden = true; return; }
  const width = 1160, height = 380, left = 62, bottom = 44, top = 12, bandwidths = [peaks.bandwidth[0], peaks.bandwidth[peaks.bandwidth.length - 1]].map((b) => b.gb_per_s);
  const intensities = dots.map((n) => n.flops / n.bytes), rates = dots.map((n) => n.gflops);
  const low = Math.floor(Math.log10(Math.min(...intensities, 1))), high = Math.ceil(Math.log10(Math.max(...intensities, 100)));
  const floor = Math.floor(Math.log10(Math.max(Math.min(...rates), 0.01))), roof = Math.ceil(Math.log10(Math.max(...rates, peaks.gflops * 1.1)));
  const x = (i) => left + (Math.log10(i) - low) / (high - low) * (width - left - 16), y = (g) => height - bottom - (Math.log10(g) - floor) / (roof - floor) * (height - bottom - top);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', width: '100%', 'aria-label': `Roofline of ${plural(dots.length, 'node')}; the table of nodes has the same figures` });
  for (let p = low; p <= high; ++p) root.append(svg('line', { x1: x(10 ** p), x2: x(10 ** p), y1: top, y2: height - bottom, class: 'grid' }), svg('text', { x: x(10 ** p), y: height - bottom + 16, 'text-anchor': 'middle' }, String(10 ** p)));
  for (let p = floor; p <= roof; ++p) root.append(svg('line', { x1: left, x2: width - 16, y1: y(10 ** p), y2: y(10 ** p), class: 'grid' }), svg('text', { x: left - 6, y: y(10 ** p) + 4, 'text-anchor': 'end' }, String(10 ** p)));
  root.append(svg('text', { x: (left + width) / 2, y: height - 6, 'text-anchor': 'middle' }, 'operations for each byte'), svg('text', { x: 14, y: height / 2, transform: `rotate(-90 14 ${height / 2})`, 'text-anchor': 'middle' }, 'GFLOP/s'));
  const line = (points) => root.append(svg('polyline', { points: points.map(([i, g]) => `${x(i)},${y(Math.max(g, 10 ** floor))}`).join(' '), class: 'roof' }));
  for (const [k, b] of bandwidths.entries()) {
    const from = Math.max(10 ** low, 10 ** floor / b), ridge = Math.min(peaks.gflops / b, 10 ** high);
    line([[from, from * b], [ridge, ridge * b], ...(k ? [] : [[10 ** high, peaks.gflops]])]);
    const middle = Math.sqrt(from * ridge);
    root.append(svg('text', { x: x(middle) + 8, y: y(middle * b) + (k ? 18 : -8), 'text-anchor': k ? 'start' : 'end' }, `${number(b, 0)} GB/s ${k ? 'from memory' : 'from caches'}`));
  }
  root.append(svg('text', { x: x(Math.min(peaks.gflops / bandwidths[0], 10 ** high / 3)) + 6, y: y(peaks.gflops) - 6 }, `${number(peaks.gflops, 0)} GFLOP/s`));
  for (const n of [...dots].sort((a, b) => (b.share || 0) - (a.share || 0))) {
    if (n.gflops < 10 ** floor) continue;
    const dot = svg('circle', { cx: x(n.flops / n.bytes), cy: y(n.gflops), r: Math.max(2.5, 44 * Math.sqrt(n.share || 0)), style: `fill:var(${colourOf(n)})`, 'data-node': n.index });
    dot.addEventListener('mousemove', (e) => tip(label(n) + `\n${number(n.gflops)} GFLOP/s, ${number(n.flops / n.bytes, 2)} operations for each byte`, e));
    dot.addEventListener('mouseleave', () => tip(''));
    dot.addEventListener('click', () => choose(n.index));
    root.append(dot);
  }
  $('roofline-plot').append(root);
}

const arena = { live: [], peak: 0, boxes: [] };
function showMemory() {
  const m = profile.memory;
  if (!m || !m.steps || !m.buffers) { $('memory').hidden = true; return; }
  const rows = (m.classes || []).map((c) => [c.class, bytes(c.bytes), bytes(c.peak_bytes)]);
  rows.push(['all together', '', bytes(m.peak_bytes || 0)]);
  $('memory-table').append(table(rows, ['class', 'now', 'peak']));
  if (m.arena_bytes) $('memory-table').append(make('p', {}, `Arena: ${bytes(m.arena_bytes)} planned, ${bytes(m.arena_lower_bound_bytes)} is the least possible, ${bytes(m.arena_sum_bytes)} if nothing shared bytes.`));
  const steps = m.steps.length;
  arena.live = new Array(steps).fill(0);
  for (const b of m.buffers) for (let s = b.first; s <= b.last && s < steps; ++s) arena.live[s] += b.bytes;
  arena.peak = arena.live.reduce((best, x, i) => x > arena.live[best] ? i : best, 0);
  if (!m.buffers.length || !steps) { $('arena').hidden = true; $('arena-status').textContent = 'No values lie in the arena.'; $('peak-title').hidden = true; return; }
  const node = nodes[m.steps[arena.peak]];
  $('peak-title').textContent = `At the peak: ${bytes(arena.live[arena.peak])} alive during ${node ? node.name : 'a node'}`;
  const alive = m.buffers.filter((b) => b.first <= arena.peak && arena.peak <= b.last).sort((a, b) => b.bytes - a.bytes);
  $('peak').append(table(alive.slice(0, 12).map((b) => [b.name, b.class, bytes(b.bytes), bytes(b.offset), nodeName(b.first), nodeName(b.last)]),
    ['value', 'class', 'bytes', 'offset', 'made by', 'last read by']));
  $('arena').setAttribute('aria-label', `Map of ${plural(m.buffers.length, 'buffer')} in an arena of ${bytes(m.arena_bytes)}; the peak is at ${node ? node.name : 'a node'}`);
  $('arena').addEventListener('mousemove', (e) => {
    const box = $('arena').getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
    const hit = arena.boxes.find((b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h);
    tip(hit ? `${hit.b.name}\n${bytes(hit.b.bytes)} at ${bytes(hit.b.offset)}, ${hit.b.class}\nfrom ${nodeName(hit.b.first)} to ${nodeName(hit.b.last)}` : '', e);
  });
  $('arena').addEventListener('mouseleave', () => tip(''));
  drawArena();
}
const nodeName = (step) => { const n = nodes[profile.memory.steps[step]]; return n ? n.name : String(step); };
function drawArena() {
  const m = profile.memory;
  if (!m || !m.buffers || !m.buffers.length || !m.steps.length) return;
  const left = 64, bottom = 22, { context: c, width, height } = prepare($('arena'), 300);
  const total = Math.max(m.arena_bytes, 1), sx = (width - left) / m.steps.length, sy = (height - bottom - 20) / total;
  arena.boxes = [];
  for (const b of m.buffers) {
    const box = { b, x: left + b.first * sx, y: height - bottom - (b.offset + b.bytes) * sy, w: (b.last - b.first + 1) * sx, h: b.bytes * sy };
    arena.boxes.push(box);
    const maker = nodes[m.steps[b.first]];
    c.fillStyle = b.class === 'scratch' ? css('--c7') : css(maker ? colourOf(maker) : '--c0');
    c.fillRect(box.x, box.y, Math.max(box.w - 0.7, 0.7), Math.max(box.h - 0.7, 0.7));
  }
  c.strokeStyle = css('--text'); c.setLineDash([4, 3]);
  const x = left + (arena.peak + 0.5) * sx;
  c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height - bottom); c.stroke(); c.setLineDash([]);
  c.fillStyle = css('--soft'); c.textAlign = 'right';
  c.fillText(bytes(total), left - 5, 24); c.fillText('0', left - 5, height - bottom - 4);
  c.textAlign = 'left'; c.fillText('first node', left, height - 9); c.textAlign = 'right'; c.fillText('last node', width - 4, height - 9);
  c.textAlign = x > width - 80 ? 'right' : 'left'; c.fillText('peak', x + (x > width - 80 ? -4 : 4), 10); c.textAlign = 'left';
}

let graphScale = 1;
function showGraph() {
  const top = nodes.filter((n) => n.parent === undefined), most = 1500;
  if (!top.length || top.length > most) { $('drawing').append(make('p', {}, top.length ? `${plural(top.length, 'node')}: more than ${most} are not drawn.` : 'No nodes ran.')); return; }
  // A view is made by no node: who wrote its bytes last, did.
  const maker = new Map(), writer = new Map(), before = new Map();
  for (const n of top) {
    before.set(n, [...new Set(n.inputs.map((o) => maker.get(o.name) || writer.get(o.shares || o.name)).filter((m) => m && m !== n))]);
    for (const o of n.outputs) { maker.set(o.name, n); writer.set(o.shares || o.name, n); }
  }
  for (const n of top) n.layer = Math.max(-1, ...before.get(n).map((m) => m.layer ?? -1)) + 1;
  // A node without predecessors stands right above its first reader.
  for (const n of top) n.reader = Infinity;
  for (const n of top) for (const m of before.get(n)) m.reader = Math.min(m.reader, n.layer);
  const layers = [];
  for (const n of top) {
    if (!before.get(n).length && n.reader < Infinity) n.layer = n.reader - 1;
    (layers[n.layer] = layers[n.layer] || []).push(n);
  }
  for (let i = 0; i < layers.length; ++i) layers[i] = layers[i] || [];
  layers.forEach((layer) => layer.forEach((n, i) => { n.place = i - (layer.length - 1) / 2; }));
  for (let sweep = 0; sweep < 4; ++sweep)
    for (const layer of layers) {
      for (const n of layer) { const p = before.get(n); n.wanted = p.length ? p.reduce((s, m) => s + m.place, 0) / p.length : n.place; }
      layer.sort((a, b) => a.wanted - b.wanted).forEach((n, i) => { n.place = i - (layer.length - 1) / 2; });
    }
  const w = 178, h = 36, dx = 196, dy = 58, half = Math.max(...layers.map((l) => l.length)) / 2;
  const width = Math.max(2 * half * dx + 20, 300), height = layers.length * dy + 20;
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Graph of ${plural(top.length, 'node')} in ${plural(layers.length, 'layer')}` });
  const x = (n) => width / 2 + n.place * dx, y = (n) => 10 + n.layer * dy;
  for (const n of top) for (const m of before.get(n)) {
    const x0 = x(m), y0 = y(m) + h, x1 = x(n), y1 = y(n), bend = Math.min(60, (y1 - y0) / 2 + 4);
    root.append(svg('path', { d: `M${x0},${y0}C${x0},${y0 + bend} ${x1},${y1 - bend} ${x1},${y1}` }));
  }
  const critical = new Set(profile.critical_path ? profile.critical_path.nodes : []);
  const heaviest = Math.max(1e-9, ...top.map((n) => n.share || 0)), short = (t, k) => t.length > k ? t.slice(0, k / 2 - 1) + '\u2026' + t.slice(-k / 2) : t;
  for (const n of top) {
    const heat = Math.sqrt((n.share || 0) / heaviest);
    const rect = svg('rect', { x: x(n) - w / 2, y: y(n), width: w, height: h, rx: 5, 'data-node': n.index, style: `fill:color-mix(in srgb, rgb(var(--heat-high)) ${Math.round(70 * heat)}%, rgb(var(--heat-low)))` });
    if (critical.has(n.index)) rect.classList.add('critical');
    rect.addEventListener('mousemove', (e) => tip(label(n) + (critical.has(n.index) ? '\non the critical path' : n.slack_ms === undefined ? '' : `\nslack ${ms(n.slack_ms)} ms`), e));
    rect.addEventListener('mouseleave', () => tip(''));
    rect.addEventListener('click', () => choose(n.index));
    const name = svg('text', { x: x(n) - w / 2 + 7, y: y(n) + 15, 'font-weight': 600 }), figures = svg('text', { x: x(n) - w / 2 + 7, y: y(n) + 29 });
    name.textContent = short(n.op, 26); figures.textContent = short(n.name || '', 17) + (n.share ? '  ' + percent(n.share) : '');
    root.append(rect, name, figures);
  }
  $('drawing').append(root);
  const size = () => { root.setAttribute('width', width * graphScale); root.setAttribute('height', height * graphScale); };
  graphScale = Math.min(1, Math.max(0.45, ($('drawing').clientWidth - 20) / width));
  size();
  $('drawing').scrollLeft = (root.clientWidth - $('drawing').clientWidth) / 2;
  $('graph-in').onclick = () => { graphScale = Math.min(3, graphScale * 1.25); size(); };
  $('graph-out').onclick = () => { graphScale = Math.max(0.1, graphScale / 1.25); size(); };
}

function showEnvironment() {
  const e = profile.environment || {}, cost = profile.profiler || {}, rows = [];
  const add = (name, value) => value !== undefined && value !== '' && rows.push([name, value]);
  add('processor', e.cpu); add('CPUs that the process may use', e.usable_cpus); add('threads', e.threads); add('options', e.options); add('Treadle', e.treadle);
  if (e.unix_time) add('taken', new Date(e.unix_time * 1000).toISOString().replace('T', ' ').slice(0, 19) + ' UTC');
  add('model', profile.model); add('command', profile.command);
  if (profile.peaks) {
    add('peak, float32', number(profile.peaks.gflops, 0) + ' GFLOP/s, measured');
    add('peak of copies', profile.peaks.bandwidth.map((b) => `${number(b.gb_per_s, 0)} GB/s of ${bytes(b.bytes)}`).join(', '));
  }
  if (cost.ns_per_event !== undefined) add('recording an event', `${number(cost.ns_per_event, 1)} ns; ${number(cost.events_per_run, 0)} events a run`);
  if (profile.runs.plain_ms) add('runs that were not recorded', `median ${ms(profile.runs.plain_ms.median)} ms, p10 ${ms(profile.runs.plain_ms.p10)}, p90 ${ms(profile.runs.plain_ms.p90)}`);
  if ('slowdown' in cost) add('recording slows a run by', cost.slowdown === null ? 'nothing beyond the noise' : percent(cost.slowdown));
  add('events lost', cost.events_lost); if (cost.events_unknown) add('events of no known node', cost.events_unknown);
  $('environment-table').append(table(rows));
}

showHeadline(); showWhere(); showRanges(); showLoad(); showFixes(); showNodes(); showRoofline(); listenToTime(); loadTime(); showMemory(); showAllocated(); showGraph(); showEnvironment();
$('filter').addEventListener('input', () => { view.filter = $('filter').value; showNodes(); });
$('group').addEventListener('change', () => { view.group = $('group').value; showNodes(); });
$('more').addEventListener('click', () => { view.all = true; showNodes(); });
const redraw = () => { drawTime(); drawArena(); drawAllocated(); };
addEventListener('resize', redraw);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', redraw);
