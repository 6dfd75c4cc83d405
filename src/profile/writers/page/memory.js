// Shows memory by class, allocations over time, the memory in use at the peak, and which buffers the arena contains at each node.
const classColours = { weights: '--c0', packed: '--c6', activations: '--c1', scratch: '--c3', io: '--c2', other: '--c7', parameters: '--p0', gradients: '--c4', optimizer_state: '--c5' };
const measuredMemory = (profile.memory || {}).measured;
const classesOf = (measured) => Object.keys(classColours).filter((c) => (measured.timeline.bytes || {})[c]);

function showMemory() {
  const m = profile.memory;
  if (!m || !m.steps || !m.buffers) { $('memory').hidden = true; return; }
  const rows = (m.classes || []).map((c) => [make('span', {}, swatch(classColours[c.class] || '--c7'), c.class), bytes(c.bytes), bytes(c.peak_bytes)]);
  const classes = table([...rows, ['together', '', bytes(m.peak_bytes || 0)]], ['class', '#now', '#peak']);
  classes.querySelector('tbody').lastChild.className = 'sum';
  $('memory-table').append(classes);
  if (m.arena_bytes) {
    const saved = m.arena_sum_bytes > 0 ? 1 - m.arena_bytes / m.arena_sum_bytes : 0;
    $('arena-plan').append(make('h3', {}, 'The arena'), facts([
      ['planned', bytes(m.arena_bytes)], ['least possible', `${bytes(m.arena_lower_bound_bytes)}` + (m.arena_bytes > m.arena_lower_bound_bytes ? `, ${percent(1 - m.arena_lower_bound_bytes / m.arena_bytes)} less than planned` : ', as planned')],
      ['if nothing shared bytes', `${bytes(m.arena_sum_bytes)}: sharing saves ${percent(saved, 0)}`]]));
  }
  showAllocated();
  showArena(m);
}

function showAllocated() {
  if (!measuredMemory) return;
  const peak = measuredMemory.peak;
  $('allocated').hidden = false;
  $('holders-title').textContent = `Held at the peak: ${bytes(peak.bytes)}, ${time(peak.ms) || '0 ms'} after the profile began`;
  $('allocated-time').setAttribute('aria-label', `Allocated bytes over time; ${bytes(peak.bytes)} at the peak: ` + Object.entries(peak.classes).map(([c, b]) => `${c} ${bytes(b)}`).join(', '));
  legendOf('allocated-legend', classesOf(measuredMemory).map((c) => [c, classColours[c]]));
  const refused = measuredMemory.refused.map((r) => `Out of memory after ${time(r.ms)}: ${bytes(r.bytes)} of ${r.class} for ${r.name || 'something without a name'}.`);
  $('allocated-status').textContent = [`${measuredMemory.events.toLocaleString('en')} blocks taken or given back.`, ...refused].join(' ');
  const rows = peak.holders.map((h) => [h.name ? breakable(h.name) : '(not known by name)', h.class, bytes(h.bytes), make('span', {}, ...shareBar(h.bytes / peak.bytes))]);
  const more = peak.more_holders ? [make('p', { class: 'hint' }, `And ${peak.more_holders.toLocaleString('en')} more, ${bytes(peak.more_holders_bytes)} together.`)] : [];
  $('holders').append(scrolling('Held at the peak', table(rows, ['held by', 'class', '#bytes', '#of the peak'])), ...more);
  drawTreemap(peak.holders);
  drawAllocated();
  redraws.push(() => drawTreemap(peak.holders), drawAllocated);
}
function drawAllocated() {
  const { timeline: { ms: times, bytes: series = {} }, peak } = measuredMemory;
  if (!times.length) return;
  const { context: c, width, height } = prepare($('allocated-time'), 220), left = 76, right = 10, bottom = 22, top = 10;
  const end = Math.max(times[times.length - 1] * 1.02, peak.ms, 1e-6);
  const x = (t) => left + t / end * (width - left - right), y = (b) => height - bottom - b / Math.max(peak.bytes * 1.05, 1) * (height - bottom - top);
  const below = new Array(times.length).fill(0);
  for (const name of classesOf(measuredMemory)) {
    const above = below.map((b, i) => b + series[name][i]);
    c.fillStyle = css(classColours[name]);
    c.beginPath();
    c.moveTo(x(times[0]), y(below[0]));
    times.forEach((t, i) => { if (i) c.lineTo(x(t), y(above[i - 1])); c.lineTo(x(t), y(above[i])); });
    c.lineTo(x(end), y(above[times.length - 1]));
    c.lineTo(x(end), y(below[times.length - 1]));
    for (let i = times.length - 1; i >= 0; --i) { c.lineTo(x(times[i]), y(below[i])); if (i) c.lineTo(x(times[i]), y(below[i - 1])); }
    c.fill();
    above.forEach((b, i) => { below[i] = b; });
  }
  c.strokeStyle = css('--text');
  c.setLineDash([4, 3]);
  c.beginPath(); c.moveTo(x(peak.ms), top); c.lineTo(x(peak.ms), height - bottom); c.stroke();
  c.setLineDash([]);
  c.fillStyle = css('--soft');
  c.textAlign = 'right';
  for (let k = 0; k <= 4; ++k) { const b = peak.bytes * k / 4; c.fillText(bytes(b), left - 8, y(b)); c.fillRect(left - 5, y(b), 5, 1); }
  c.textAlign = 'left';
  const step = niceStep(end / (width / 130)), [unit, factor] = unitOf(step * 2);
  for (let t = 0; t <= end && x(t) < width - 44; t += step) c.fillText(`${number(t * factor, step * factor < 1 ? 2 : 0)} ${unit}`, x(t), height - 9);
}
// Draws a squarified treemap: each holder of memory is a rectangle whose area is proportional to its bytes.
function drawTreemap(holders) {
  const width = $('holders-map').clientWidth || 1160, height = 260;
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': 'What was held at the peak as rectangles; the table below has the same figures' });
  let items = holders.filter((h) => h.bytes > 0), rest = { x: 0, y: 0, w: width, h: height }, left = items.reduce((s, h) => s + h.bytes, 0);
  const worst = (row, sum, side, scale) => row.reduce((most, h) => { const across = sum * scale / side, along = h.bytes * scale / across; return Math.max(most, across / along, along / across); }, 0);
  while (items.length && rest.w > 0.5 && rest.h > 0.5) {
    const side = Math.min(rest.w, rest.h), scale = rest.w * rest.h / left, row = [];
    let sum = 0;
    while (items.length && (!row.length || worst([...row, items[0]], sum + items[0].bytes, side, scale) <= worst(row, sum, side, scale))) {
      row.push(items[0]);
      sum += items[0].bytes;
      items = items.slice(1);
    }
    const across = sum * scale / side, tall = rest.w >= rest.h;
    let at = tall ? rest.y : rest.x;
    for (const h of row) {
      const along = h.bytes * scale / across;
      addHolder(root, h, tall ? { x: rest.x, y: at, width: across, height: along } : { x: at, y: rest.y, width: along, height: across });
      at += along;
    }
    left -= sum;
    rest = tall ? { x: rest.x + across, y: rest.y, w: rest.w - across, h: rest.h } : { x: rest.x, y: rest.y + across, w: rest.w, h: rest.h - across };
  }
  $('holders-map').replaceChildren(root);
}
function addHolder(root, h, box) {
  const colour = classColours[h.class] || '--c7', name = h.name || '(not known by name)', most = Math.floor((box.width - 10) / 7.2);
  root.append(withTip(svg('rect', { ...box, style: `fill:var(${colour});stroke:var(--card)` }), () => `${name}\n${h.class}, ${bytes(h.bytes)}`));
  if (most < 4 || box.height < 18) return;
  const style = `fill:var(${inkVariable(colour)})`;
  root.append(svg('text', { x: box.x + 5, y: box.y + 15, style }, shorten(name, most)));
  if (box.height > 38 && box.width > 64) root.append(svg('text', { x: box.x + 5, y: box.y + 31, style }, bytes(h.bytes)));
}

const arena = { live: [], peak: 0, boxes: [] };
const nodeName = (step) => { const n = nodes[profile.memory.steps[step]]; return n ? n.name || n.op : String(step); };
function showArena(m) {
  const steps = m.steps.length;
  arena.live = new Array(steps).fill(0);
  for (const b of m.buffers) for (let s = b.first; s <= b.last && s < steps; ++s) arena.live[s] += b.bytes;
  arena.peak = arena.live.reduce((best, x, i) => x > arena.live[best] ? i : best, 0);
  if (!m.buffers.length || !steps) { $('arena-map').hidden = true; $('arena-none').hidden = false; return; }
  const alive = m.buffers.filter((b) => b.first <= arena.peak && arena.peak <= b.last).sort((a, b) => b.bytes - a.bytes);
  $('peak-title').textContent = `Alive at the peak: ${bytes(arena.live[arena.peak])} during ${nodeName(arena.peak)}`;
  $('peak').append(scrolling('Alive at the peak', table(alive.map((b) => [breakable(b.name), b.class, bytes(b.bytes), bytes(b.offset), breakable(nodeName(b.first)), breakable(nodeName(b.last))]),
    ['value', 'class', '#bytes', '#offset', 'made by', 'last read by'])));
  $('arena').setAttribute('aria-label', `Map of ${plural(m.buffers.length, 'buffer')} in an arena of ${bytes(m.arena_bytes)}; the peak is at ${nodeName(arena.peak)}`);
  if (m.buffers.some((b) => b.class !== 'scratch' && b.class !== 'activations')) $('arena-by').value = 'class';
  $('arena-by').addEventListener('change', () => { nameArenaColours(m); drawArena(); });
  nameArenaColours(m);
  $('arena').addEventListener('mousemove', (e) => {
    const box = $('arena').getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
    const hit = arena.boxes.find((b) => x >= b.x && x <= b.x + b.w && y >= b.y && y <= b.y + b.h);
    tip(hit ? `${hit.b.name}\n${bytes(hit.b.bytes)} at ${bytes(hit.b.offset)}, ${hit.b.class}\nfrom ${nodeName(hit.b.first)} to ${nodeName(hit.b.last)}` : '', e);
  });
  $('arena').addEventListener('mouseleave', () => tip(''));
  drawArena();
  redraws.push(drawArena);
}
const arenaByClass = () => $('arena-by').value === 'class';
function nameArenaColours(m) {
  const makers = new Set(m.buffers.filter((b) => b.class !== 'scratch').map((b) => nodes[m.steps[b.first]]).filter(Boolean).map((n) => n.op));
  const classes = new Set(m.buffers.map((b) => b.class));
  legendOf('arena-legend', arenaByClass() ? Object.entries(classColours).filter(([c]) => classes.has(c))
    : [...operators.filter((o, i) => i < 7 && makers.has(o.op)).map((o) => [`by ${o.op}`, opColour.get(o.op)]), ['scratch, others', '--c7']]);
}
function arenaColour(b) {
  if (arenaByClass()) return classColours[b.class] || '--c7';
  const maker = nodes[profile.memory.steps[b.first]];
  return b.class === 'scratch' ? '--c7' : maker ? colourOf(maker) : '--c0';
}
function drawArena() {
  const m = profile.memory, left = 76, bottom = 22, top = 20, { context: c, width, height } = prepare($('arena'), 300);
  const total = Math.max(m.arena_bytes, 1), sx = (width - left) / m.steps.length, sy = (height - bottom - top) / total;
  c.fillStyle = css('--soft');
  c.strokeStyle = css('--line');
  c.textAlign = 'right';
  for (let k = 0; k <= 4; ++k) {
    const at = height - bottom - total * k / 4 * sy;
    c.beginPath(); c.moveTo(left, at); c.lineTo(width, at); c.stroke();
    c.fillText(bytes(total * k / 4), left - 8, at);
  }
  arena.boxes = [];
  for (const b of m.buffers) {
    const box = { b, x: left + b.first * sx, y: height - bottom - (b.offset + b.bytes) * sy, w: (b.last - b.first + 1) * sx, h: b.bytes * sy };
    arena.boxes.push(box);
    c.fillStyle = css(arenaColour(b));
    c.fillRect(box.x, box.y, Math.max(box.w - 0.7, 0.7), Math.max(box.h - 0.7, 0.7));
  }
  const x = left + (arena.peak + 0.5) * sx, isRight = x > width - 80;
  c.strokeStyle = css('--text');
  c.setLineDash([4, 3]);
  c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height - bottom); c.stroke();
  c.setLineDash([]);
  c.fillStyle = css('--soft');
  c.textAlign = isRight ? 'right' : 'left';
  c.fillText('peak', x + (isRight ? -4 : 4), 10);
  c.textAlign = 'left';
  c.fillText('first node', left, height - 9);
  c.textAlign = 'right';
  c.fillText('last node', width - 4, height - 9);
  c.textAlign = 'left';
}
