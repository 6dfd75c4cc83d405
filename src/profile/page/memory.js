'use strict';
// What was really allocated: over time, and at the peak as a treemap.
const classColours = { weights: '--c0', packed: '--c6', activations: '--c1', scratch: '--c3', io: '--c2', other: '--c7' };
function showAllocated() {
  const measured = (profile.memory || {}).measured;
  if (!measured) return;
  $('allocated').hidden = false;
  const peak = measured.peak, classes = Object.keys(classColours).filter((c) => (measured.timeline.bytes || {})[c]);
  $('holders-title').textContent = `Held at the peak: ${bytes(peak.bytes)}, ${ms(peak.ms)} ms after the profile began`;
  $('allocated-time').setAttribute('aria-label', `Allocated bytes over time; ${bytes(peak.bytes)} at the peak: ` + Object.entries(peak.classes).map(([c, b]) => `${c} ${bytes(b)}`).join(', '));
  for (const c of classes) $('allocated-legend').append(make('span', {}, make('i', { class: 'swatch', style: `background:var(${classColours[c]})` }), c));
  const refused = measured.refused.map((r) => `Out of memory after ${ms(r.ms)} ms: ${bytes(r.bytes)} of ${r.class} for ${r.name || 'something without a name'}.`).join(' ');
  $('allocated-status').textContent = `${plural(measured.events, 'event')}. ${refused}`;
  $('holders').append(table(peak.holders.slice(0, 20).map((h) => [h.name || '(not known by name)', h.class, bytes(h.bytes), percent(h.bytes / peak.bytes)]), ['held by', 'class', 'bytes', 'of the peak']));
  drawTreemap(peak.holders);
  drawAllocated();
}
function drawAllocated() {
  const measured = (profile.memory || {}).measured;
  if (!measured) return;
  const times = measured.timeline.ms, series = measured.timeline.bytes || {}, classes = Object.keys(classColours).filter((c) => series[c]);
  const { context: c, width, height } = prepare($('allocated-time'), 220), left = 76, bottom = 22;
  const end = Math.max(times[times.length - 1] * 1.02, measured.peak.ms, 1e-6), x = (t) => left + t / end * (width - left - 8), y = (b) => height - bottom - b / (measured.peak.bytes * 1.05) * (height - bottom - 8);
  const below = new Array(times.length).fill(0);
  for (const name of classes) {
    c.fillStyle = css(classColours[name]);
    c.beginPath(); c.moveTo(x(times[0]), y(below[0]));
    times.forEach((t, i) => { if (i) c.lineTo(x(t), y(below[i - 1] + series[name][i - 1])); c.lineTo(x(t), y(below[i] + series[name][i])); });
    c.lineTo(x(end), y(below[times.length - 1] + series[name][times.length - 1])); c.lineTo(x(end), y(below[times.length - 1]));
    for (let i = times.length - 1; i >= 0; --i) { c.lineTo(x(times[i]), y(below[i])); if (i) c.lineTo(x(times[i]), y(below[i - 1])); }
    c.fill();
    times.forEach((t, i) => { below[i] += series[name][i]; });
  }
  c.strokeStyle = css('--text'); c.beginPath(); c.moveTo(x(measured.peak.ms), 8); c.lineTo(x(measured.peak.ms), height - bottom); c.stroke();
  c.fillStyle = css('--soft');
  for (let k = 0; k <= 4; ++k) { const b = measured.peak.bytes * k / 4; c.fillText(bytes(b), 4, y(b)); c.fillRect(left - 4, y(b), 4, 1); }
  const step = niceStep(end / 8);
  for (let t = 0; t <= end; t += step) c.fillText(number(t, step < 1 ? 2 : 0) + ' ms', x(t), height - 9);
}
// Squarified: each holder is a rectangle as large as its bytes.
function drawTreemap(holders) {
  const width = 1160, height = 260, root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width: '100%', role: 'img', 'aria-label': 'What was held at the peak as rectangles; the table below has the same figures' });
  let items = holders.filter((h) => h.bytes > 0), rest = { x: 0, y: 0, w: width, h: height }, left = items.reduce((s, h) => s + h.bytes, 0);
  const worst = (row, sum, side, scale) => Math.max(...row.map((h) => { const across = sum * scale / side, along = h.bytes * scale / across; return Math.max(across / along, along / across); }));
  while (items.length) {
    const side = Math.min(rest.w, rest.h), scale = rest.w * rest.h / left, row = [];
    let sum = 0;
    while (items.length && (!row.length || worst([...row, items[0]], sum + items[0].bytes, side, scale) <= worst(row, sum, side, scale))) { row.push(items[0]); sum += items[0].bytes; items = items.slice(1); }
    const across = sum * scale / side, tall = rest.w >= rest.h;
    let at = tall ? rest.y : rest.x;
    for (const h of row) {
      const along = h.bytes * scale / across, box = tall ? { x: rest.x, y: at, width: across, height: along } : { x: at, y: rest.y, width: along, height: across };
      const rect = svg('rect', { ...box, style: `fill:var(${classColours[h.class] || '--c7'});stroke:var(--card)` }), name = h.name || '(not known by name)';
      rect.addEventListener('mousemove', (e) => tip(`${name}\n${h.class}, ${bytes(h.bytes)}`, e)); rect.addEventListener('mouseleave', () => tip(''));
      root.append(rect);
      if (box.width > 60 && box.height > 16) root.append(svg('text', { x: box.x + 5, y: box.y + 14, style: 'fill:#fff;pointer-events:none' }, name.slice(0, Math.floor(box.width / 7))));
      at += along;
    }
    left -= sum;
    rest = tall ? { x: rest.x + across, y: rest.y, w: rest.w - across, h: rest.h } : { x: rest.x, y: rest.y + across, w: rest.w, h: rest.h - across };
    if (rest.w < 0.5 || rest.h < 0.5) break;
  }
  $('holders-map').append(root);
}
