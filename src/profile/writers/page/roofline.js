// Draws the roofline chart: each node's operations per second over its operations per byte, below the limits of the machine or device that
// took most of the time.
function showRoofline() {
  const known = nodes.filter((n) => n.flops > 0 && n.bytes > 0 && n.gflops > 0), shares = new Map();
  for (const n of known) shares.set(n.device || '', (shares.get(n.device || '') || 0) + (n.share || 0));
  const device = [...shares.keys()].sort((a, b) => shares.get(b) - shares.get(a))[0];
  const dots = known.filter((n) => (n.device || '') === device), peaks = device ? (profile.device_peaks || []).find((p) => p.device === device) : profile.peaks;
  if (!dots.length || !peaks || !peaks.bandwidth.length) { $('roofline').hidden = true; return; }
  drawRoofline(dots, peaks);
  redraws.push(() => drawRoofline(dots, peaks));
}
function drawRoofline(dots, peaks) {
  const width = $('roofline-plot').clientWidth || 1160, height = 380, left = 62, right = 16, bottom = 44, top = 18;
  const caches = peaks.bandwidth.reduce((best, b) => b.gb_per_s > best ? b.gb_per_s : best, 0), memory = peaks.bandwidth[peaks.bandwidth.length - 1].gb_per_s;
  const extreme = (list, pick, start) => list.reduce((best, x) => pick(best, x), start);
  const intensities = dots.map((n) => n.flops / n.bytes), rates = dots.map((n) => n.gflops);
  const low = Math.floor(Math.log10(extreme(intensities, Math.min, 1))), high = Math.ceil(Math.log10(extreme(intensities, Math.max, 100)));
  const floor = Math.floor(Math.log10(Math.max(extreme(rates, Math.min, Infinity), 0.01))), roof = Math.ceil(Math.log10(extreme(rates, Math.max, peaks.gflops * 1.1)));
  const x = (i) => left + (Math.log10(i) - low) / (high - low) * (width - left - right);
  const y = (g) => height - bottom - (Math.log10(g) - floor) / (roof - floor) * (height - bottom - top);
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `Roofline of ${plural(dots.length, 'node')}; the table of nodes has the same figures` });
  const line = (x1, y1, x2, y2) => root.append(svg('line', { x1, x2, y1, y2, class: 'grid' }));
  const text = (atX, atY, anchor, content) => root.append(svg('text', { x: atX, y: atY, 'text-anchor': anchor }, content));
  for (let p = low; p <= high; ++p) {
    line(x(10 ** p), top, x(10 ** p), height - bottom);
    text(x(10 ** p), height - bottom + 16, p === high ? 'end' : 'middle', (10 ** p).toLocaleString('en', { maximumFractionDigits: 6 }));
  }
  for (let p = floor; p <= roof; ++p) {
    line(left, y(10 ** p), width - right, y(10 ** p));
    text(left - 6, y(10 ** p) + 4, 'end', (10 ** p).toLocaleString('en', { maximumFractionDigits: 6 }));
  }
  text((left + width) / 2, height - 6, 'middle', 'FLOP for each byte');
  root.append(svg('text', { x: 14, y: height / 2, transform: `rotate(-90 14 ${height / 2})`, 'text-anchor': 'middle' }, 'GFLOP/s'));
  for (const n of [...dots].sort((a, b) => (b.share || 0) - (a.share || 0))) {
    if (n.gflops < 10 ** floor) continue;
    const dot = svg('circle', { cx: x(n.flops / n.bytes), cy: y(n.gflops), r: Math.max(2.5, 40 * Math.sqrt(n.share || 0)), style: `fill:var(${colourOf(n)})`, 'data-node': n.index });
    withTip(dot, () => `${label(n)}\n${number(n.gflops)} GFLOP/s, ${number(n.flops / n.bytes, 2)} FLOP for each byte` + firstOf(n.unused_kernels || [], (u) => `not ${u.kernel}: ${shorten(u.why, 80)}`).map((line) => '\n' + line).join(''));
    dot.addEventListener('click', () => choose(n.index));
    root.append(dot);
  }
  // Draws the limits ("roofs") after the dots for nodes, so that the limits' labels stay readable.
  const rises = (rate) => [Math.max(10 ** low, 10 ** floor / rate), Math.min(peaks.gflops / rate, 10 ** high)];
  const roofs = caches > memory * 1.05 ? [[caches, 'from caches'], [memory, 'from memory']] : [[memory, 'from memory']];
  for (const [k, [rate, where]] of roofs.entries()) {
    const [from, ridge] = rises(rate), points = [[from, from * rate], [ridge, ridge * rate], ...(k ? [] : [[10 ** high, Math.min(peaks.gflops, 10 ** high * rate)]])];
    root.append(svg('polyline', { points: points.map(([i, g]) => `${x(i)},${y(Math.max(g, 10 ** floor))}`).join(' '), class: k ? 'roof second' : 'roof' }));
    const middle = from ** 0.6 * ridge ** 0.4;
    text(x(middle) + (k ? 10 : -8), y(middle * rate) + (k ? 14 : -6), k || x(middle) < left + 120 ? 'start' : 'end', `${number(rate, 0)} GB/s ${where}`);
  }
  text(width - right - 4, y(peaks.gflops) - 7, 'end', `${number(peaks.gflops, 0)} GFLOP/s, measured peak${peaks.device ? ` of ${peaks.device}` : ''}`);
  $('roofline-plot').replaceChildren(root);
}
