// Shows the headline, where a run's time goes, loading, ranges that the program marked, remedies, and the environment.
function showHeadline() {
  if (isPlan) return showPlanHeadline();
  const runs = profile.runs, environment = profile.environment || {}, memory = profile.memory || {}, cost = profile.profiler || {};
  const name = profile.model ? profile.model.split('/').pop() : (profile.phases ? 'Training step' : 'Session');
  $('title').textContent = name;
  document.title = `Profile of ${name}`;
  $('subtitle').textContent = plural(runs.recorded || 0, 'recorded run') + (runs.warmup ? ` after ${runs.warmup} to warm up` : '') +
    (environment.threads ? `, ${plural(environment.threads, 'thread')}` : '') + (environment.options ? `; ${environment.options}` : '') +
    (profile.assumed_extents ? `. Dimensions that were not given: ${profile.assumed_extents}` : '');
  const figure = (value, title, text) =>
    $('headline').append(make('div', { class: 'figure' }, make('h2', {}, title), make('b', {}, value), make('span', {}, text)));
  if (runs.ms) figure(time(runs.ms.median), 'A run, median', `p10 ${time(runs.ms.p10)}, p90 ${time(runs.ms.p90)}`);
  const flops = nodes.reduce((sum, n) => sum + (n.flops || 0) * (n.calls || 0), 0);
  if (flops > 0 && runs.ms) {
    const rate = flops / runs.ms.median / 1e6, peak = profile.peaks && profile.peaks.gflops;
    figure(`${flopText(1e9 * rate)}/s`, 'Rate', `${flopText(flops)} a run` + (peak ? `; ${percent(rate / peak, 0)} of the machine's ${number(peak, 0)} GFLOP/s` : ''));
  }
  const measured = memory.measured && memory.measured.peak.bytes, most = measured || memory.peak_bytes;
  if (most) {
    const arena = memory.arena_bytes ? `; arena ${bytes(memory.arena_bytes)}, at least ${bytes(memory.arena_lower_bound_bytes)}` : '';
    const before = measured && memory.peak_bytes > measured ? `; ${bytes(memory.peak_bytes)} while loading` : '';
    figure(bytes(most), 'Memory at the peak', (measured ? 'of recorded runs' : 'since the session was made') + before + arena);
  }
  if (runs.load_ms) figure(time(runs.load_ms), 'Loading', `first run ${time(runs.first_run_ms)}`);
  if (runs.recorded && isKnown(cost.ns_per_event)) {
    const recording = (profile.where || []).find((part) => part.id === 'profiler'), share = recording ? recording.share : 0;
    figure(isKnown(cost.slowdown) ? percent(cost.slowdown) : percent(share), 'The profiler itself',
      `${number(cost.events_per_run, 0)} events a run, ${number(cost.ns_per_event, 0)} ns each; ${cost.events_lost ? cost.events_lost.toLocaleString('en') : 'none'} lost`);
  }
  const warnings = [];
  if (!runs.recorded) warnings.push('No run was recorded.');
  if (runs.ms && runs.recorded >= 8 && runs.ms.p90 - runs.ms.p10 > runs.ms.median / 2)
    warnings.push(`Runs took ${time(runs.ms.p10)} to ${time(runs.ms.p90)}: the machine was busy, or inputs differ. Small differences below mean nothing.`);
  if (cost.events_lost) warnings.push(`${plural(cost.events_lost, 'event')} found no room. Runs that lack some are left out.`);
  $('warnings').replaceChildren(...warnings.map((text) => make('p', { class: 'warning', role: 'note' }, text)));
}

// Colors for the parts of a run's time. All parts that are not listed share one color.
const partColours = { compute: '--c0', memory: '--c1', moves: '--c2', unknown: '--c3', control_flow: '--c4', dispatch: '--c5', other_numbers: '--c6', barrier: '--c4' };
const stepColours = { forward: '--c0', backward: '--c3', communication: '--c5', optimizer: '--c2' };
function showWhere() {
  const parts = (profile.where || []).map((p) => ({ ...p, colour: partColours[p.id] || '--c7', text: `${p.title}: ${time(p.ms)}, ${percent(p.share)}` }));
  if (!parts.length) { $('where').hidden = true; return; }
  const sum = (key) => parts.reduce((s, p) => s + p[key], 0), scale = timeScale([sum('ms')]);
  const rows = parts.map((p) => [make('span', {}, swatch(p.colour), p.title), scale.text(p.ms), percent(p.share)]);
  const whole = table([...rows, ['together', scale.text(sum('ms')), percent(sum('share'))]], ['part', '#' + scale.unit, '#of the run']);
  whole.querySelector('tbody').lastChild.className = 'sum';
  $('where-bar').replaceChildren(stackedBar('Where a run went', parts));
  $('where-table').append(whole);
  const path = profile.critical_path;
  if (path) {
    const all = profile.memory.steps.length, gain = 1 - path.ms / path.all_nodes_ms;
    $('where-side').append(make('h3', {}, 'Critical path'), make('p', {}, `${time(path.ms)} of ${time(path.all_nodes_ms)}: ${path.nodes.length} of ${plural(all, 'node')}.`),
      make('p', { class: 'hint' }, gain < 0.005 ? 'Every node waits for the one before it. Only faster nodes make a run shorter.' : `With nodes at once, a run can be ${percent(gain, 0)} shorter at best.`));
  }
  showPool();
  showStepPhases();
}
const poolColours = { running: '--c0', 'no ready work': '--c3', barrier: '--c4', asleep: '--c7' };
function poolTable(...of) {
  const made = table(...of);
  made.classList.add('pool-table');
  return made;
}
function showPool() {
  const list = profile.pool || [], states = Object.keys(poolColours);
  if (!list.length) return;
  const partsOf = (t) => states.map((s) => ({ title: s, share: t.states[s], colour: poolColours[s], text: `${s}: ${percent(t.states[s])} of ${time(t.ms)}` }));
  const title = (t) => t.name + (t.calls ? ', calls runs' : '');
  $('where-threads').append(make('h3', {}, 'Threads during runs'),
    poolTable(list.map((t) => [title(t), ...states.map((s) => percent(t.states[s])), stackedBar(`States of ${title(t)}`, partsOf(t))]),
      ['thread', ...states.map((s) => '#' + s), 'states']));
}
function showStepPhases() {
  const parts = (profile.phases || []).map((p) => ({ ...p, title: p.phase, colour: stepColours[p.phase] || '--c7', text: `${p.phase}: ${plural(p.nodes, 'node')}, ${time(p.ms)}, ${percent(p.share)}` }));
  if (!parts.length) return;
  const scale = timeScale([parts.reduce((s, p) => s + p.ms, 0)]);
  $('where-side').prepend(make('h3', {}, 'Phases of a step'), stackedBar('Phases of a step', parts),
    table(parts.map((p) => [make('span', {}, swatch(p.colour), p.title), p.nodes.toLocaleString('en'), scale.text(p.ms), percent(p.share)]), ['phase', '#nodes', '#' + scale.unit, '#of the run']));
}

/**
 * Makes a flame graph of a tree: children lie below their parent, and widths are proportional to times.
 * @param list  objects { name, parent, ms, text }, parents before their children
 */
function flameGraph(title, list) {
  const rowHeight = 22, deepest = 24, roots = list.filter((x) => x.parent === undefined), all = roots.reduce((s, x) => s + x.ms, 0);
  const graph = make('div', { class: 'flame', role: 'img', 'aria-label': `${title} as a flame graph; the table below has the same figures` });
  const children = new Map();
  list.forEach((x, i) => { const key = x.parent === undefined ? -1 : x.parent; children.has(key) ? children.get(key).push(i) : children.set(key, [i]); });
  let depths = 0;
  const add = (key, from, depth) => {
    if (depth >= deepest) return;
    for (const i of children.get(key) || []) {
      const x = list[i], width = 100 * x.ms / all;
      if (width > 0.08) {
        const colour = colours[[...x.name.split(' (')[0]].reduce((h, c) => (h * 31 + c.charCodeAt(0)) >>> 0, 7) % 7];
        const box = make('div', { style: `left:${from}%;width:${width}%;top:${depth * rowHeight}px;background:var(${colour});color:var(${inkVariable(colour)})` }, width > 3 ? x.name : '');
        graph.append(withTip(box, () => x.text));
        depths = Math.max(depths, depth + 1);
        add(i, from, depth + 1);
      }
      from += width;
    }
  };
  add(-1, 0, 0);
  graph.style.height = depths * rowHeight + 'px';
  return graph;
}
// Returns table rows for a tree, with indented names. Items below `least` are omitted.
function treeRows(list, least, cells) {
  const rows = [], children = new Map();
  list.forEach((x, i) => { const key = x.parent === undefined ? -1 : x.parent; children.has(key) ? children.get(key).push(i) : children.set(key, [i]); });
  const add = (key, depth) => {
    for (const i of children.get(key) || []) {
      if (list[i].ms < least) continue;
      rows.push([make('span', { style: `padding-left:${Math.min(depth, 20) * 16}px` }, breakable(list[i].name)), ...cells(list[i])]);
      add(i, depth + 1);
    }
  };
  add(-1, 0);
  return rows;
}
const sumOfRoots = (list) => list.reduce((sum, x) => sum + (x.parent === undefined ? x.ms : 0), 0);
const leftOut = (shown, all, what) => shown < all ? [make('p', { class: 'hint' }, `${plural(all - shown, what)} of less than 0.5 % left out.`)] : [];

function showLoad() {
  const load = profile.load || [], all = sumOfRoots(load);
  if (!load.length || !(all > 0)) { $('load').hidden = true; return; }
  const scale = timeScale([all]);
  const list = load.map((p) => ({ ...p, text: `${p.name}: ${time(p.ms)}, ${percent(p.ms / all)} of loading` + (p.calls > 1 ? `, ${p.calls} times` : '') }));
  const rows = treeRows(list, all / 200, (p) => [p.calls.toLocaleString('en'), scale.text(p.ms), percent(p.ms / all)]);
  $('load-graph').append(make('p', {}, `${time(all)} together.`), flameGraph('Loading', list));
  $('load-table').append(scrolling('Table of phases of loading', table(rows, ['phase', '#times', '#' + scale.unit, '#of loading'])), ...leftOut(rows.length, load.length, 'phase'));
}

function showRanges() {
  const ranges = profile.ranges || [], marks = profile.marks;
  if (marks) {
    const rows = marks.name.slice(0, 200).map((name, i) => [breakable(name), time(marks.ms[i]) || '0 ms', (profile.timeline.threads || [])[marks.thread[i]] || '']);
    $('marks-table').append(make('h3', {}, `Marks: ${marks.events.toLocaleString('en')}`), scrolling('Table of marks', table(rows, ['mark', '#at', 'on'])), ...(marks.events > rows.length ? [make('p', { class: 'hint' }, `The first ${rows.length}.`)] : []));
  }
  if (!ranges.length) { $('ranges').hidden = !marks; return; }
  const list = ranges.map((r) => ({ ...r, ms: r.total_ms, median: r.ms.median, text: `${r.name}\n${plural(r.calls, 'call')}, ${time(r.total_ms)}; ${time(r.self_ms)} its own, ${time(r.runs_ms)} in recorded runs` }));
  const all = sumOfRoots(list), scale = timeScale([all]), each = timeScale(list.map((r) => r.median));
  const rows = treeRows(list, all / 200, (r) => [r.calls.toLocaleString('en'), each.text(r.median), scale.text(r.ms), scale.text(r.self_ms), scale.text(r.runs_ms)]);
  $('ranges-graph').append(make('p', {}, `${plural(ranges.length, 'range')}` + (ranges.some((r) => r.python) ? ', with the calls of Python' : '') + `, ${time(all)} together.`), flameGraph('Ranges', list));
  $('ranges-table').append(scrolling('Table of ranges', table(rows, ['range', '#calls', `#median, ${each.unit}`, `#all, ${scale.unit}`, `#own, ${scale.unit}`, `#in runs, ${scale.unit}`])), ...leftOut(rows.length, ranges.length, 'range'));
}

function showFixes() {
  if (isPlan) { $('fix').hidden = true; return; }
  const list = profile.remedies || [];
  for (const [i, remedy] of list.slice(0, 3).entries()) {
    const copy = make('button', { type: 'button', 'aria-label': `Copy the command of ${i + 1}` }, 'copy');
    copy.addEventListener('click', () => navigator.clipboard && navigator.clipboard.writeText(remedy.command).then(() => { copy.textContent = 'copied'; }));
    $('remedies').append(make('div', { class: 'remedy' },
      make('h3', {}, `${i + 1}. ${remedy.title[0].toUpperCase()}${remedy.title.slice(1)}: ${percent(remedy.effect, 0)} less ${remedy.saves}`),
      make('p', {}, remedy.evidence.replaceAll('->', '\u2192')), make('p', { class: 'command' }, make('code', {}, remedy.command), copy)));
  }
  if (list.length > 3) {
    const rows = list.slice(3).map((r) => [r.title, `${percent(r.effect, 0)} less ${r.saves}`, make('code', {}, r.command)]);
    $('remedies').append(make('details', {}, make('summary', {}, `and ${plural(list.length - 3, 'change')} with less effect`), scrolling('Further changes', table(rows, ['change', 'effect', 'command']))));
  }
  if (!list.length) {
    const nothing = profile.remedies ? 'Nothing that was tried makes a difference beyond the noise.' : 'No changes were tried for this profile. ';
    $('remedies').append(make('p', {}, nothing, ...(profile.remedies ? [] : [make('code', {}, 'treadle profile MODEL -o report.html'), ' tries them.'])));
  }
  const slow = nodes.filter((n) => isKnown(n.bound_ms) && n.ms && n.ms.median > n.bound_ms).map((n) => ({ n, lost: n.ms.median - n.bound_ms }));
  slow.sort((a, b) => b.lost - a.lost);
  if (!slow.length) return;
  const run = profile.runs.ms.median, scale = timeScale(slow.map(({ n }) => n.ms.median));
  // If nodes run one after the other, a run gets shorter by all the time that a node saves. Otherwise only savings beyond its slack count.
  const path = profile.critical_path, inOrder = !path || path.all_nodes_ms <= 1.02 * run;
  const gain = ({ n, lost }) => percent(Math.max(0, lost - (inOrder ? 0 : n.slack_ms || 0)) / run);
  $('recoverable').append(make('h3', {}, 'Nodes furthest from what the machine reaches'),
    make('p', { class: 'hint' }, `The last column: how much shorter a run is if the node reaches its limit${inOrder ? '' : ', less its slack'}.`),
    scrolling('Nodes furthest from the limit', table(slow.slice(0, 5).map((s) => [nodeLink(s.n), s.n.op, scale.text(s.n.ms.median), scale.text(s.n.bound_ms), s.n.bound, scale.text(s.lost), gain(s)]),
      ['node', 'operator', '#' + scale.unit, `#least, ${scale.unit}`, 'bound by', `#above it, ${scale.unit}`, '#of the run'])),
    ...(slow.length > 5 ? [make('p', { class: 'hint' }, `The first 5 of ${slow.length.toLocaleString('en')} nodes above their limit. The table of nodes has them all.`)] : []));
}

function showEnvironment() {
  const e = profile.environment || {}, cost = profile.profiler || {}, peaks = profile.peaks, plain = profile.runs.plain_ms;
  const slowdown = !('slowdown' in cost) ? '' : cost.slowdown === null ? 'nothing beyond the noise' : percent(cost.slowdown);
  $('environment-table').append(facts([
    ['processor', e.cpu], ['CPUs that the process may use', e.usable_cpus], ['threads', e.threads], ['options', e.options], ['Treadle', e.treadle],
    ['taken', e.unix_time && new Date(e.unix_time * 1000).toISOString().replace('T', ' ').slice(0, 19) + ' UTC'],
    ['model', profile.model], ['command', profile.command && make('code', {}, profile.command)],
    ['peak, float32', peaks && `${number(peaks.gflops, 0)} GFLOP/s, ` + (peaks.raised_by ? `as node ${peaks.raised_by} shows; less was measured` : `measured ${peaks.busy ? 'while other programs ran' : 'at rest'}${peaks.kept ? ' and kept' : ''}; spread ${percent(peaks.spread || 0)}`)],
    ['peak of copies', peaks && peaks.bandwidth.map((b) => `${number(b.gb_per_s, 0)} GB/s of ${bytes(b.bytes)}`).join(', ')],
    ...(profile.device_peaks || []).map((d) => [`peak of ${d.device}`, `${number(d.gflops, 0)} GFLOP/s (float32)` + d.bandwidth.map((b) => `, ${number(b.gb_per_s, 0)} GB/s of ${bytes(b.bytes)}`).join('')]),
    ['recording an event', isKnown(cost.ns_per_event) ? `${number(cost.ns_per_event, 1)} ns; ${number(cost.events_per_run, 0)} events a run` : ''],
    ['runs that were not recorded', plain && `median ${time(plain.median)}, p10 ${time(plain.p10)}, p90 ${time(plain.p90)}`],
    ['recording slows a run by', slowdown], ['events lost', cost.events_lost],
    ['events of no known node', cost.events_unknown || '']]));
}
