// Draws the timeline of a run, or of the whole recording, on a canvas.
const rowHeight = 22, laneHeight = 20, axisHeight = 24;
/**
 * Unpacks events into one array per field; packed() in page.cpp writes them. In the overview, `node` is an index into the
 * ranges, and -1 stands for a run. In a run's timeline, -1 stands for waiting for another job, and -2 and below for states of the pool's
 * threads.
 */
function unpack(timeline) {
  const count = timeline.count, text = atob(timeline.packed);
  const events = { count, of: timeline.events, node: new Int32Array(count), thread: new Int32Array(count), phase: new Int32Array(count).fill(-1), waited: new Float64Array(count), start: new Float64Array(count), end: new Float64Array(count) };
  let at = 0, node = 0, thread = 0, start = 0;
  const next = () => {
    let value = 0, factor = 1, byte;
    do { byte = text.charCodeAt(at++); value += (byte & 127) * factor; factor *= 128; } while (byte & 128);
    return value % 2 ? -(value + 1) / 2 : value / 2;
  };
  for (let i = 0; i < count; ++i) {
    events.node[i] = node += next();
    events.thread[i] = thread += next();
    start += next();
    events.start[i] = start / 1e3;
    events.end[i] = (start + next()) / 1e3;
    if (timeline.has_phases) events.phase[i] = next();
    if (timeline.has_waits) events.waited[i] = next() / 1e3;
  }
  return events;
}
const timeView = { from: 0, to: 1, end: 1, lanes: [], boxes: [], events: null, overview: false, step: -1 };
// Returns true if an event with this end is over at `start` (in us). Tolerates 2.5 ns, because times are rounded to nanoseconds.
const isOver = (end, start) => end <= start + 0.0025;
/** Adds an event around consecutive nodes of a layer, as layer_spans.cpp does. Their `node` is -100 and below. */
const layerNames = [], firstLayer = -100;
function withLayers(events) {
  if (!nodes.some((n) => n.layers.length)) return events;
  const made = { node: [], thread: [], phase: [], waited: [], start: [], end: [] }, numbers = new Map(layerNames.map((name, i) => [name, i])), threads = new Map();
  const add = (node, thread, phase, start, end, waited = 0) => { made.waited.push(waited); made.node.push(node); made.thread.push(thread); made.phase.push(phase); made.start.push(start); return made.end.push(end) - 1; };
  const numberOf = (name) => { if (!numbers.has(name)) { numbers.set(name, layerNames.length); layerNames.push(name); } return numbers.get(name); };
  const common = (a, b) => { let n = 0; while (n < a.length && n < b.length && a[n] === b[n]) ++n; return n; };
  for (let i = 0; i < events.count; ++i) {
    const thread = events.thread[i], start = events.start[i], end = events.end[i], node = events.phase[i] < 0 ? nodes[events.node[i]] : undefined;
    if (!threads.has(thread)) threads.set(thread, [{ end: Infinity, outer: [], open: [], events: [] }]);
    const frames = threads.get(thread);
    while (isOver(frames[frames.length - 1].end, start)) frames.pop();
    const frame = frames[frames.length - 1];
    if (node && node.layers.length) {
      const layers = node.layers.slice(common(node.layers, frame.outer));
      frame.events.length = common(layers, frame.open);
      for (const e of frame.events) made.end[e] = Math.max(made.end[e], end);
      for (let k = frame.events.length; k < layers.length; ++k) frame.events.push(add(firstLayer - numberOf(layers[k]), thread, -1, start, end));
      frame.open = layers;
    }
    if (node ? node.hasBodies : events.node[i] < -1) frames.push({ end, outer: node ? node.layers : frame.outer, open: [], events: [] });
    add(events.node[i], thread, events.phase[i], start, end, events.waited[i]);
  }
  return { count: made.node.length, of: events.of, node: Int32Array.from(made.node), thread: Int32Array.from(made.thread), phase: Int32Array.from(made.phase), waited: Float64Array.from(made.waited), start: Float64Array.from(made.start), end: Float64Array.from(made.end) };
}
const layerAt = (i) => timeView.overview ? undefined : layerNames[firstLayer - timeView.events.node[i]];
const rangeOf = (i) => timeView.overview ? (profile.ranges || [])[timeView.events.node[i]] : undefined;
const nodeOf = (i) => timeView.overview ? undefined : nodes[timeView.events.node[i]];
const poolStates = ['running', 'no ready work', 'barrier', 'asleep'];
const stateOf = (i) => timeView.overview ? undefined : poolStates[-2 - timeView.events.node[i]];
const phaseOf = (i) => timeView.events.phase[i] < 0 ? undefined : ((nodeOf(i) || {}).kernel_phases || [])[timeView.events.phase[i]];
function titleOf(i) {
  const phase = phaseOf(i), node = nodeOf(i), range = rangeOf(i);
  return phase ? phase.phase : node ? node.name || node.op : range ? range.name : timeView.overview ? 'run' : layerAt(i) || stateOf(i) || 'wait';
}
const rangeColour = (name) => colours[[...name.split(' (')[0]].reduce((h, c) => (h * 31 + c.charCodeAt(0)) >>> 0, 7) % 7];
function colourOfEvent(i) {
  const phase = phaseOf(i), node = nodeOf(i), range = rangeOf(i);
  return phase ? phaseColour(phase.phase) : node ? colourOf(node) : range ? rangeColour(range.name) : layerAt(i) ? '--layer' : stateOf(i) ? poolColours[stateOf(i)] : '--c7';
}
function describe(i) {
  const events = timeView.events, node = nodeOf(i), phase = phaseOf(i);
  const what = node ? (phase ? `${phase.phase} of ` : '') + label(node) : layerAt(i) ? `layer ${layerAt(i)}` : timeView.overview || stateOf(i) ? titleOf(i) : 'waiting for another job';
  const wait = events.waited[i] >= 1 ? `\nits inputs were there ${time(events.waited[i] / 1e3)} before` : '';
  return `${what}\nhere: ${time((events.end[i] - events.start[i]) / 1e3)} from ${time(events.start[i] / 1e3) || 0}${wait}`;
}
function loadTime() {
  const which = $('which').value, found = (profile.timeline || {})[which];
  if (!found || !found.count) { $('timeline').hidden = true; return; }
  const unpacked = unpack(found), events = which === 'ranges' ? unpacked : withLayers(unpacked), lanes = new Map();
  Object.assign(timeView, { events, overview: which === 'ranges', end: 0, from: 0, step: -1 });
  for (let i = 0; i < events.count; ++i) {
    const thread = events.thread[i], start = events.start[i];
    if (!lanes.has(thread)) lanes.set(thread, { thread, rows: [], open: [] });
    const { rows, open } = lanes.get(thread);
    while (open.length && isOver(open[open.length - 1], start)) open.pop();
    (rows[open.length] = rows[open.length] || []).push(i);
    open.push(events.end[i]);
    timeView.end = Math.max(timeView.end, events.end[i]);
  }
  timeView.lanes = [...lanes.values()];
  timeView.to = timeView.end * 1.005;
  $('time').setAttribute('aria-label', `Timeline of ${plural(events.count, 'event')} on ${plural(timeView.lanes.length, 'thread')}, ${time(timeView.end / 1e3)}. Keys: arrows move, plus and minus zoom, 0 shows all, comma and full stop step through events`);
  $('time-status').textContent = events.of > unpacked.count ? `The first ${unpacked.count.toLocaleString('en')} of ${events.of.toLocaleString('en')} events.` : '';
  drawLegend();
  drawTime();
}
function drawLegend() {
  const { overview } = timeView;
  const entries = overview ? [['run', '--c7']] : operators.slice(0, 7).map((o) => [o.op, opColour.get(o.op)]);
  if (!overview && operators.length > 7) entries.push(['others', '--c7']);
  if (!overview && layerNames.length) entries.push(['layer', '--layer']);
  legendOf('time-legend', entries);
  const phases = overview || !timeView.events.phase.some((p) => p >= 0) ? [] : phaseNames.map((name) => [name, phaseColour(name)]);
  legendOf('phase-legend', phases);
  if (phases.length) $('phase-legend').prepend(make('b', {}, 'within kernels'));
  if (showsPath()) $('time-legend').append(make('span', {}, make('i', { class: 'underlined' }), 'on the critical path'));
}
// The critical path is only marked if some nodes are not on it, since the marks would otherwise distinguish nothing.
const showsPath = () => !timeView.overview && critical.size > 0 && critical.size < nodes.length;
// Returns the index in `row` of the first event that ends after the time `at`. Events of a row do not overlap.
function firstBehind(row, at, from = 0) {
  let low = from, high = row.length;
  while (low < high) { const mid = (low + high) >> 1; timeView.events.end[row[mid]] <= at ? low = mid + 1 : high = mid; }
  return low;
}
let isAsked = false;
function askForTime() {  // draws at most once per frame, even if there are more wheel events
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(() => { isAsked = false; drawTime(); });
}
function drawTime() {
  if (!timeView.lanes.length || $('timeline').hidden) return;
  const height = axisHeight + timeView.lanes.reduce((s, l) => s + l.rows.length * rowHeight + laneHeight, 0) + 6;
  const { context: c, width } = prepare($('time'), height);
  drawAxis(c, width, height);
  if (timeView.overview) drawMarks(c, width, height);
  timeView.boxes = [];
  const palette = new Map(allColours.map((name) => [name, css(name)]));
  const inks = new Map([...palette].map(([name, colour]) => [name, inkOn(colour)]));
  const style = { palette, inks, text: css('--text'), soft: css('--soft') };
  let y = axisHeight;
  for (const lane of timeView.lanes) {
    c.fillStyle = style.soft;
    c.fillText((profile.timeline.threads || [])[lane.thread] || 'thread', 4, y + 9);
    y += laneHeight;
    for (const row of lane.rows) { drawRow(c, row, y, width, style); y += rowHeight; }
  }
}
function drawAxis(c, width, height) {
  const span = timeView.to - timeView.from, scale = width / span, step = niceStep(span / (width / 110));
  const [unit, factor, digits] = step >= 1e6 ? ['s', 1e-6, 0] : step >= 100 ? ['ms', 1e-3, step >= 1000 ? 0 : 1] : ['\u00b5s', 1, step >= 1 ? 0 : 2];
  c.fillStyle = css('--soft');
  c.strokeStyle = css('--line');
  for (let t = Math.ceil(timeView.from / step) * step; t <= timeView.to; t += step) {
    const x = (t - timeView.from) * scale;
    c.beginPath(); c.moveTo(x, axisHeight); c.lineTo(x, height); c.stroke();
    const label = `${number(t * factor, digits)} ${unit}`;
    if (x + 3 + c.measureText(label).width <= width) c.fillText(label, x + 3, 12);
  }
}
// Draws points that the program has marked as lines across all threads, with names where they fit.
function drawMarks(c, width, height) {
  const marks = profile.marks || { name: [] }, scale = width / (timeView.to - timeView.from);
  let free = -Infinity;
  c.fillStyle = css('--text');
  c.strokeStyle = css('--text');
  c.setLineDash([2, 3]);
  marks.name.forEach((name, i) => {
    const x = (marks.ms[i] * 1e3 - timeView.from) * scale;
    if (x < 0 || x > width) return;
    c.beginPath(); c.moveTo(x, axisHeight); c.lineTo(x, height); c.stroke();
    if (x < free) return;
    const text = shorten(name, 24);
    c.fillText(text, x + 3, axisHeight + 8);
    free = x + 12 + 6.6 * text.length;
  });
  c.setLineDash([]);
}
function drawRow(c, row, y, width, style) {
  const { start, end } = timeView.events, scale = width / (timeView.to - timeView.from), high = rowHeight - 3;
  for (let k = firstBehind(row, timeView.from); k < row.length && start[row[k]] < timeView.to;) {
    const i = row[k], x0 = (start[i] - timeView.from) * scale, x1 = Math.max((end[i] - timeView.from) * scale, x0 + 0.7);
    const node = nodeOf(i), colour = colourOfEvent(i), w = Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.6 : 0), 0.7);
    c.fillStyle = style.palette.get(colour);
    c.fillRect(x0, y, w, high);
    if (node && critical.has(node.index) && showsPath() && !phaseOf(i)) { c.fillStyle = style.text; c.fillRect(x0, y + high - 3, w, 3); }
    if ((node && node.index === view.chosen) || i === timeView.step) {
      c.strokeStyle = style.text;
      c.lineWidth = 2;
      c.strokeRect(x0, y, w, high);
      c.lineWidth = 1;
    }
    timeView.boxes.push({ x0, x1, y, i });
    if (w > 34) drawTitle(c, titleOf(i), Math.max(x0, 0), Math.min(x1, width), y + high / 2, style.inks.get(colour));
    // Skips the following events that end within the same pixel, because they would not be visible.
    const next = (x1 + 0.5) / scale + timeView.from;
    k = k + 1 < row.length && end[row[k + 1]] > next ? k + 1 : firstBehind(row, next, k + 1);
  }
}
function drawTitle(c, title, x0, x1, y, ink) {
  const most = Math.floor((x1 - x0 - 8) / 6.6);
  if (most < 3) return;
  c.save();
  c.beginPath(); c.rect(x0, y - 10, x1 - x0 - 3, 20); c.clip();
  c.fillStyle = ink;
  c.fillText(shorten(title, most), x0 + 4, y);
  c.restore();
}
function zoom(factor, at = 0.5) {
  const middle = timeView.from + at * (timeView.to - timeView.from), whole = timeView.end * 1.005;
  const span = Math.min(Math.max((timeView.to - timeView.from) * factor, 0.05), whole);
  timeView.from = Math.max(0, Math.min(middle - at * span, whole - span));
  timeView.to = timeView.from + span;
  askForTime();
}
function move(part) {
  const span = timeView.to - timeView.from;
  timeView.from = Math.max(0, Math.min(timeView.from + part * span, timeView.end * 1.005 - span));
  timeView.to = timeView.from + span;
  askForTime();
}
// Selects the event that is `by` positions further, for readers who use the keyboard.
function stepTime(by) {
  const { count, start, end } = timeView.events, span = timeView.to - timeView.from;
  timeView.step = Math.max(0, Math.min(count - 1, timeView.step + by));
  const i = timeView.step;
  if (start[i] < timeView.from || end[i] > timeView.to) {
    timeView.from = Math.max(0, start[i] - span / 4);
    timeView.to = timeView.from + span;
  }
  const thread = (profile.timeline.threads || [])[timeView.events.thread[i]] || 'thread';
  $('time-status').textContent = `${thread}: ${describe(i).replaceAll('\n', '; ')}`;
  askForTime();
}
function boxAt(event) {
  const box = $('time').getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return timeView.boxes.find((b) => y >= b.y && y < b.y + rowHeight - 2 && x >= b.x0 - 1 && x <= b.x1 + 1);
}
function listenToTime() {
  const canvas = $('time'), whole = 1e9;
  for (const option of [...$('which').options]) if (!((profile.timeline || {})[option.value] || {}).count) option.remove();
  let drag = null, moved = false;
  canvas.addEventListener('wheel', (e) => {
    if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { e.preventDefault(); move((e.deltaX || e.deltaY) / canvas.clientWidth); return; }
    // Unless Ctrl or Cmd is pressed or the canvas has the focus, the wheel scrolls the page, so that readers can scroll past the canvas.
    if (!e.ctrlKey && !e.metaKey && document.activeElement !== canvas) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.25 : 0.8, (e.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth);
  }, { passive: false });
  canvas.addEventListener('pointerdown', (e) => { drag = e.clientX; moved = false; canvas.setPointerCapture(e.pointerId); });
  canvas.addEventListener('pointermove', (e) => {
    if (drag !== null && (moved || Math.abs(e.clientX - drag) > 2)) { moved = true; tip(''); move((drag - e.clientX) / canvas.clientWidth); drag = e.clientX; return; }
    const hit = boxAt(e);
    tip(hit ? describe(hit.i) : '', e);
  });
  canvas.addEventListener('pointerup', (e) => {
    const hit = boxAt(e);
    drag = null;
    if (!moved && hit && nodeOf(hit.i)) choose(nodeOf(hit.i).index);
  });
  canvas.addEventListener('pointercancel', () => { drag = null; });
  canvas.addEventListener('pointerleave', () => tip(''));
  canvas.addEventListener('keydown', (e) => {
    const act = { ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15), '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1.4), 0: () => zoom(whole), ',': () => stepTime(-1), '.': () => stepTime(1) }[e.key];
    if (act && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); act(); }
  });
  $('zoom-in').addEventListener('click', () => zoom(0.6));
  $('zoom-out').addEventListener('click', () => zoom(1.7));
  $('zoom-all').addEventListener('click', () => zoom(whole));
  $('which').addEventListener('change', loadTime);
  redraws.push(drawTime);
}
