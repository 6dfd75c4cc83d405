// Draws the graph: nodes in layers, colored by time or bytes. If the graph is large, the document contains only its visible part.
const box = { width: 236, height: 40, dx: 256, dy: 62, whole: 1500 };
const drawing = { top: [], before: new Map(), edges: [], layers: [], width: 0, height: 0, scale: 1, root: null, all: true };
function showGraph() {
  drawing.top = nodes.filter((n) => n.parent === undefined && !n.between_devices);
  if (!drawing.top.length) { $('graph').hidden = true; return; }
  layOut();
  drawing.all = drawing.top.length <= box.whole;
  drawing.root = svg('svg', { viewBox: `0 0 ${drawing.width} ${drawing.height}`, role: 'img', 'aria-label': `Graph of ${plural(drawing.top.length, 'node')} in ${plural(drawing.layers.length, 'layer')}; the table of nodes has the same figures` });
  $('drawing').append(drawing.root);
  drawing.scale = Math.min(1, Math.max(0.6, ($('drawing').clientWidth - 20) / drawing.width));
  sizeGraph();
  drawGraph();
  $('drawing').scrollLeft = (drawing.width * drawing.scale - $('drawing').clientWidth) / 2;
  const scaleBy = (factor) => { drawing.scale = Math.min(3, Math.max(0.1, drawing.scale * factor)); sizeGraph(); drawGraph(); };
  $('graph-in').addEventListener('click', () => scaleBy(1.25));
  $('graph-out').addEventListener('click', () => scaleBy(0.8));
  $('graph-by').addEventListener('change', drawGraph);
  $('drawing').addEventListener('keydown', (e) => { const factor = { '+': 1.25, '=': 1.25, '-': 0.8 }[e.key]; if (factor && !e.ctrlKey && !e.metaKey) { e.preventDefault(); scaleBy(factor); } });
  $('drawing').addEventListener('wheel', (e) => { if (e.ctrlKey || e.metaKey) { e.preventDefault(); scaleBy(e.deltaY > 0 ? 0.8 : 1.25); } }, { passive: false });
  if (!drawing.all) $('drawing').addEventListener('scroll', () => requestAnimationFrame(drawGraph));
}
function sizeGraph() {
  drawing.root.setAttribute('width', drawing.width * drawing.scale);
  drawing.root.setAttribute('height', drawing.height * drawing.scale);
}
// Assigns each node to the layer given by its longest path from an input, and places it near the nodes whose outputs it reads.
function layOut() {
  const { top, before } = drawing, maker = new Map(), writer = new Map();
  // No node makes a view, so the node that last wrote the view's memory counts as its maker.
  for (const n of top) {
    before.set(n, [...new Set(n.inputs.map((o) => maker.get(o.name) || writer.get(o.shares || o.name)).filter((m) => m && m !== n))]);
    for (const o of n.outputs) { maker.set(o.name, n); writer.set(o.shares || o.name, n); }
  }
  for (const n of top) { n.depth = before.get(n).reduce((most, m) => Math.max(most, m.depth ?? -1), -1) + 1; n.reader = Infinity; }
  // A node without predecessors is placed in the layer above its first reader.
  for (const n of top) for (const m of before.get(n)) m.reader = Math.min(m.reader, n.depth);
  const layers = drawing.layers;
  for (const n of top) {
    if (!before.get(n).length && n.reader < Infinity) n.depth = n.reader - 1;
    (layers[n.depth] = layers[n.depth] || []).push(n);
  }
  for (let i = 0; i < layers.length; ++i) layers[i] = layers[i] || [];
  const spread = (layer) => layer.forEach((n, i) => { n.place = i - (layer.length - 1) / 2; });
  layers.forEach(spread);
  for (let sweep = 0; sweep < 4; ++sweep)
    for (const layer of layers) {
      for (const n of layer) { const p = before.get(n); n.wanted = p.length ? p.reduce((s, m) => s + m.place, 0) / p.length : n.place; }
      spread(layer.sort((a, b) => a.wanted - b.wanted));
    }
  drawing.width = Math.max(layers.reduce((most, l) => Math.max(most, l.length), 0) * box.dx + 20, 300);
  drawing.height = layers.length * box.dy + 4;
  for (const n of top) { n.x = drawing.width / 2 + n.place * box.dx; n.y = 10 + n.depth * box.dy; }
  for (const n of top) for (const m of before.get(n)) drawing.edges.push([m, n]);
}
function drawGraph() {
  const view = $('drawing'), margin = 400, seen = { x0: 0, y0: 0, x1: drawing.width, y1: drawing.height };
  if (!drawing.all) {
    seen.x0 = view.scrollLeft / drawing.scale - margin;
    seen.y0 = view.scrollTop / drawing.scale - margin;
    seen.x1 = (view.scrollLeft + view.clientWidth) / drawing.scale + margin;
    seen.y1 = (view.scrollTop + view.clientHeight) / drawing.scale + margin;
  }
  const heat = heatOf($('graph-by').value), parts = [], path = [...critical], onPath = new Map(path.map((index, i) => [index, path[i + 1]]));
  for (const [m, n] of drawing.edges) {
    if (Math.max(m.x, n.x) < seen.x0 || Math.min(m.x, n.x) > seen.x1 || n.y < seen.y0 || m.y + box.height > seen.y1) continue;
    const y0 = m.y + box.height, bend = Math.min(60, (n.y - y0) / 2 + 4), isCritical = onPath.get(m.index) === n.index;
    parts.push(svg('path', { d: `M${m.x},${y0}C${m.x},${y0 + bend} ${n.x},${n.y - bend} ${n.x},${n.y}`, class: isCritical ? 'critical' : '' }));
  }
  for (const n of drawing.top)
    if (n.x + box.width / 2 >= seen.x0 && n.x - box.width / 2 <= seen.x1 && n.y + box.height >= seen.y0 && n.y <= seen.y1) parts.push(...nodeBox(n, heat));
  drawing.root.replaceChildren(...parts);
}
// Returns two functions of a node: its heat (time or bytes, scaled to 0 to 1), and the text for it.
function heatOf(by) {
  const value = by === 'bytes' ? (n) => (n.bytes || 0) * (n.calls || 1) : (n) => n.share || 0;
  const most = drawing.top.reduce((m, n) => Math.max(m, value(n)), 1e-12);
  return { of: (n) => Math.sqrt(value(n) / most), text: (n) => value(n) > 0 ? (by === 'bytes' ? bytes(value(n)) : percent(value(n))) : '' };
}
function nodeBox(n, heat) {
  const left = n.x - box.width / 2, isCritical = critical.has(n.index), classes = [isCritical ? 'critical' : '', n.index === view.chosen ? 'chosen' : ''];
  const rect = svg('rect', { x: left, y: n.y, width: box.width, height: box.height, rx: 5, 'data-node': n.index, class: classes.join(' ').trim(), style: `fill:color-mix(in srgb, rgb(var(--heat-high)) ${Math.round(70 * heat.of(n))}%, rgb(var(--heat-low)))` });
  withTip(rect, () => label(n) + (!isCritical && isKnown(n.slack_ms) ? `\nslack ${time(n.slack_ms) || '0 ms'}` : ''));
  rect.addEventListener('click', () => choose(n.index));
  return [rect, svg('text', { x: left + 8, y: n.y + 16, class: 'op' }, shorten(n.op, 23)), svg('text', { x: left + box.width - 8, y: n.y + 16, 'text-anchor': 'end' }, heat.text(n)),
    svg('text', { x: left + 8, y: n.y + 32 }, shorten(n.name || '', 36))];
}
function markInGraph() {
  if (!drawing.root) return;
  const n = nodes[view.chosen], area = $('drawing');
  if (n && n.y !== undefined) {
    area.scrollTop = n.y * drawing.scale - area.clientHeight / 2;
    area.scrollLeft = n.x * drawing.scale - area.clientWidth / 2;
    if (!drawing.all) drawGraph();
  }
  drawing.root.querySelectorAll('rect').forEach((r) => r.classList.toggle('chosen', Number(r.dataset.node) === view.chosen));
}
