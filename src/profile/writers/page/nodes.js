// Shows the table of nodes, details of the selected node, and the phases within kernels.
const nodeScale = timeScale(nodes.map((n) => isPlan ? n.estimated_ms : n.ms && n.ms.median));
const inMillions = (x) => isKnown(x) ? number(x / 1e6, 3) : '';
const whole = isPlan ? 'all nodes' : 'the run';
const columns = [
  { key: 'name', title: 'node', class: 'name' }, { key: 'op', title: 'operator', class: 'op', cell: (n) => breakable(n.op.replace(/([a-z])([A-Z])/g, '$1\u200b$2')) },
  { key: 'kernelText', title: 'kernel', class: 'kernel' },
  { key: 'shapes', title: 'shapes', class: 'shape', cell: (n) => shorten(n.shapes, 72) },
  ...(isPlan ? plannedColumns() : measuredColumns())];
function plannedColumns() {
  return [{ key: 'flops', title: 'MFLOP', n: true, cell: (n) => inMillions(n.flops) }, { key: 'bytes', title: 'MB', n: true, cell: (n) => inMillions(n.bytes) },
    { key: 'estimated_ms', title: `${nodeScale.unit} at least`, n: true, cell: (n) => nodeScale.text(n.estimated_ms), hint: 'operations and bytes over what this machine reaches' },
    { key: 'share', title: 'of all nodes', n: true, cell: (n) => isKnown(n.share) ? shareBar(n.share) : '' }, { key: 'pass', title: 'passes', class: 'pass' }];
}
function measuredColumns() {
  return [
    { key: 'calls', title: 'calls', n: true, cell: (n) => isKnown(n.calls) ? number(n.calls, n.calls % 1 ? 1 : 0) : '' },
    { key: 'median', title: nodeScale.unit, n: true, value: (n) => n.ms && n.ms.median, cell: (n) => nodeScale.text(n.ms && n.ms.median), hint: 'median over the recorded runs' },
    { key: 'spread', title: '\u00b1', n: true, value: (n) => n.ms && n.ms.p90 - n.ms.p10, cell: (n) => nodeScale.text(n.ms && (n.ms.p90 - n.ms.p10) / 2), hint: 'half of the way from p10 to p90' },
    { key: 'share', title: 'of the run', n: true, cell: (n) => shareBar(n.share) },
    { key: 'gflops', title: 'GFLOP/s', n: true, cell: (n) => number(n.gflops) }, { key: 'gb_per_s', title: 'GB/s', n: true, cell: (n) => number(n.gb_per_s) },
    { key: 'of_peak', title: 'of the limit', n: true, cell: (n) => isKnown(n.of_peak) ? [make('span', {}, percent(n.of_peak, 0)), make('small', {}, n.bound)] : '', hint: 'least possible time over the median, and which limit counts' }]
    .filter((c) => c.key !== 'calls' || nodes.some((n) => n.calls !== 1))
    .filter((c) => !['gflops', 'gb_per_s', 'of_peak'].includes(c.key) || nodes.some((n) => isKnown(n[c.key])));
}
const view = { sort: 'share', down: true, filter: '', group: '', all: false, chosen: -1, open: true };
const valueOf = (column, node) => column.value ? column.value(node) : node[column.key];

function shareBar(share) {
  const width = Math.max(0, Math.min(1, share || 0)) * 100;
  return [make('span', { class: 'share', 'aria-hidden': 'true' }, make('i', { style: `width:${width}%` })), make('span', { class: 'part' }, percent(share))];
}
// Returns a button with a node's name. A click on it selects the node in the table.
function nodeLink(node) {
  const link = make('button', { type: 'button', class: 'link' }, breakable(node.name || '(unnamed)'));
  link.addEventListener('click', () => choose(node.index));
  return link;
}
function nodeRow(node) {
  const isChosen = node.index === view.chosen, isOpen = isChosen && view.open;
  const row = make('tr', { 'data-node': node.index, class: isChosen ? 'chosen' : undefined });
  for (const c of columns) {
    const cell = make('td', { class: c.n ? 'n' : c.class });
    if (c.key === 'name') {
      const button = make('button', { type: 'button', class: 'link', 'aria-expanded': String(isOpen) }, breakable(node.name || '(unnamed)'));
      button.addEventListener('click', () => choose(node.index, !isOpen, false));
      cell.append(button);
    } else {
      const content = c.cell ? c.cell(node) : node[c.key];
      cell.append(...(Array.isArray(content) ? content : [content || '']));
    }
    row.append(cell);
  }
  return row;
}
function operandList(operands) {
  const texts = operands.map((o) => `${o.name} ${o.dtype || ''}${o.shape ? `[${o.shape.join(', ')}]` : ''}${o.value ? ` = ${o.value}` : ''}${o.strides ? `, strides [${o.strides.join(', ')}]` : ''}${o.constant ? ', constant' : ''}${o.shares ? `, in the bytes of ${o.shares}` : ''}`);
  return make('ul', {}, ...texts.map((text) => make('li', {}, breakable(text))));
}
// Lists kernels of the operator that were not used, with the reasons.
const unusedKernels = (node) => node.unused_kernels ? make('ul', {}, ...node.unused_kernels.map((u) => make('li', {}, `${u.kernel}: ${u.why}`))) : '';
function detailRow(node) {
  const t = node.ms, rate = (x, unit, factor) => isKnown(x) ? `${number(x / factor, digitsOf(x / factor))} ${unit}` : '';
  const pairs = [
    ['stands for', node.sources && breakable(node.sources.join(', '))], ['made by the passes', node.pass],
    ['did no more', node.left_alone ? make('ul', {}, ...node.left_alone.map((r) => make('li', {}, `${r.pass}: ${r.why}`))) : ''], ['kernel', node.kernelText], ['not taken', unusedKernels(node)], ['phase of the step', node.phase], ['gradient of', node.forward ? make('span', {}, ...node.forward.flatMap((i, k) => [k ? ', ' : '', nodeLink(nodes[i])])) : ''],
    ['in the body of', isKnown(node.parent) ? nodeLink(nodes[node.parent]) : ''],
    ['time', t && `median ${time(t.median)}, p10 ${time(t.p10)}, p90 ${time(t.p90)}, least ${time(t.min)}, most ${time(t.max)}`],
    ['least time', isPlan ? time(node.estimated_ms) : ''],
    ['work of a call', [rate(node.flops, 'MFLOP', 1e6), isKnown(node.bytes) ? bytes(node.bytes) : ''].filter(Boolean).join(', ')],
    ['limit', isKnown(node.bound_ms) ? `${time(node.bound_ms)}, by ${node.bound}` : ''],
    ['critical path', critical.has(node.index) ? 'on it' : isKnown(node.slack_ms) ? `may be ${time(node.slack_ms)} slower` : ''],
    ['inputs there', isKnown(node.ready_ms) ? `${time(node.ready_ms) || '0 ms'} after the run began` + (node.waited_ms > 0 ? `; the node began ${time(node.waited_ms)} later` : '') : ''],
    ['packed weights', node.packed_bytes ? bytes(node.packed_bytes) : ''],
    ['reads', node.inputs.length ? operandList(node.inputs) : ''], ['writes', node.outputs.length ? operandList(node.outputs) : '']];
  const cell = make('td', { colspan: columns.length }, facts(pairs));
  if (node.kernel_phases) cell.append(stackedBar('Within the kernel', phaseParts(node)));
  return make('tr', { class: 'detail' }, cell);
}
function sorted(list) {
  const column = columns.find((c) => c.key === view.sort) || columns[0], sign = view.down ? -1 : 1;
  return [...list].sort((a, b) => {
    const x = valueOf(column, a), y = valueOf(column, b);
    if (!isKnown(x) || !isKnown(y)) return !isKnown(x) - !isKnown(y);
    return sign * (typeof x === 'string' ? x.localeCompare(y) : x - y);
  });
}
function sortBy(column) {
  view.down = view.sort === column.key ? !view.down : Boolean(column.n);
  view.sort = column.key;
  showNodes();
  $('node-table').querySelectorAll('th button')[columns.indexOf(column)].focus();
}
const matches = (node, words) => {
  const text = [node.name, node.op, node.kernelText, node.shapes, node.phase, node.pass, ...(node.sources || [])].join(' ').toLowerCase();
  return words.every((word) => text.includes(word));
};
function showNodes() {
  const limit = 60, found = nodes.filter((n) => matches(n, view.filter.toLowerCase().split(/\s+/).filter(Boolean)));
  const head = make('tr', {}, ...columns.map((c) => {
    const on = view.sort === c.key, button = make('button', { type: 'button', title: c.hint }, c.title + (on ? (view.down ? ' \u25be' : ' \u25b4') : ''));
    button.addEventListener('click', () => sortBy(c));
    return make('th', { scope: 'col', class: c.n ? 'n' : c.class, 'aria-sort': on ? (view.down ? 'descending' : 'ascending') : undefined }, button);
  }));
  const body = make('tbody');
  let shown = 0;
  const add = (node) => {
    if (!view.all && shown >= limit) return;
    body.append(nodeRow(node));
    if (node.index === view.chosen && view.open) body.append(detailRow(node));
    ++shown;
  };
  if (view.group) addGroups(found, body, add);
  else sorted(found).forEach(add);
  $('node-table').replaceChildren(make('thead', {}, head), body);
  $('node-count').textContent = `${plural(found.length, 'node')}, ${percent(found.reduce((s, n) => s + (n.share || 0), 0))} of ${whole}`;
  $('more').hidden = shown >= found.length;
  const above = [...new Set(found.map((n) => n.above_peak).filter(Boolean))];
  $('above').hidden = !above.length;
  $('above').textContent = `Above 100 %: ${above.join('; or ')}.`;
  $('more').textContent = `Show all ${found.length.toLocaleString('en')} nodes`;
}
function addGroups(found, body, add) {
  const groups = new Map(), sum = (list, key) => list.reduce((s, n) => s + (n[key] || 0), 0);
  for (const n of found) { const key = n[view.group] || '(none)'; groups.has(key) ? groups.get(key).push(n) : groups.set(key, [n]); }
  const median = columns.findIndex((c) => c.key === (isPlan ? 'estimated_ms' : 'median')), spread = isPlan ? 0 : 1, rest = columns.length - median - 2 - spread;
  for (const [key, list] of [...groups].sort((a, b) => sum(b[1], 'share') - sum(a[1], 'share'))) {
    const row = make('tr', { class: 'group' }, make('th', { scope: 'rowgroup', colspan: median }, breakable(key), make('span', { class: 'hint' }, ` ${plural(list.length, 'node')}`)));
    row.append(make('td', { class: 'n' }, nodeScale.text(sum(list, isPlan ? 'estimated_ms' : 'mean_ms'))), ...(spread ? [make('td')] : []), make('td', { class: 'n' }, ...shareBar(sum(list, 'share'))));
    if (rest > 0) row.append(make('td', { colspan: rest }));
    body.append(row);
    sorted(list).forEach(add);
  }
}
/** Shows a node in the table, the timeline and the graph. */
function choose(index, open = true, scroll = true) {
  view.chosen = index;
  view.open = open;
  if (scroll) {
    view.filter = $('filter').value = '';
    view.all = true;
  }
  showNodes();
  drawTime();
  markInGraph();
  const row = $('node-table').querySelector(`tr[data-node="${index}"]`);
  if (!row) return;
  if (scroll) row.scrollIntoView({ block: 'center' });
  row.querySelector('button').focus({ preventScroll: true });
}
function filterNodes(text) {
  view.filter = $('filter').value = text;
  showNodes();
  $('nodes').scrollIntoView();
}
function listenToNodes() {
  const options = { op: 'operator', layer: 'layer', kernel: 'kernel', pass: 'passes', phase: 'phase of the step', bound: 'limit' };
  for (const [key, title] of Object.entries(options))
    if (new Set(nodes.map((n) => n[key] || '')).size > 1) $('group').append(make('option', { value: key }, title));
  $('filter').addEventListener('input', () => { view.filter = $('filter').value; showNodes(); });
  $('group').addEventListener('change', () => { view.group = $('group').value; showNodes(); });
  $('more').addEventListener('click', () => { view.all = true; showNodes(); });
}

const phaseParts = (node) => node.kernel_phases.map((p) => ({ title: p.phase, share: p.share, colour: phaseColour(p.phase), text: `${p.phase}: ${time(p.mean_ms)}, ${percent(p.share)} of the node's phases\n${number(p.calls, p.calls % 1 ? 1 : 0)} calls of a run` }));
function showKernels() {
  const list = nodes.filter((n) => n.kernel_phases && n.kernel_phases.length).sort((a, b) => (b.share || 0) - (a.share || 0));
  if (!list.length) { $('kernels').hidden = true; return; }
  const all = [...phaseTimes.values()].reduce((s, x) => s + x, 0), most = 12, scale = timeScale([...phaseTimes.values()]);
  const calls = (name) => list.reduce((s, n) => s + n.kernel_phases.filter((p) => p.phase === name).reduce((t, p) => t + p.calls, 0), 0);
  $('kernel-phases').append(
    stackedBar('What kernels did', phaseNames.map((name) => ({ title: name, share: phaseTimes.get(name) / all, colour: phaseColour(name), text: `${name}: ${time(phaseTimes.get(name))}, ${percent(phaseTimes.get(name) / all)}` }))),
    table(phaseNames.map((name) => [make('span', {}, swatch(phaseColour(name)), name), number(calls(name), 0), scale.text(phaseTimes.get(name)), percent(phaseTimes.get(name) / all)]),
      ['phase', '#calls of a run', '#' + scale.unit, '#of all phases']));
  const rows = list.slice(0, most).map((n) => [nodeLink(n), n.op, percent(n.share), stackedBar(`Within ${n.name}`, phaseParts(n))]);
  const nodesTable = scrolling('Phases of nodes', table(rows, ['node', 'operator', '#of the run', 'its phases']));
  nodesTable.classList.add('phase-table');
  $('kernel-phases').append(make('h3', {}, list.length > most ? `The ${most} largest of ${plural(list.length, 'node')}` : 'By node'), nodesTable);
}
