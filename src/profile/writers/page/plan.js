// Parts that only pages of `treadle explain` have: the headline, and what each optimizer pass changed. Such a page describes no runs.
function showPlanHeadline() {
  const memory = profile.memory || {}, name = profile.model.split('/').pop(), flops = nodes.reduce((sum, n) => sum + (n.flops || 0), 0), unknown = nodes.filter((n) => !isKnown(n.estimated_ms)).length;
  $('title').textContent = name;
  $('environment-title').textContent = 'Environment';
  $('path-hint').hidden = true;
  document.title = `Plan of ${name}`;
  $('subtitle').textContent = 'Optimised and planned; no node ran' + (profile.assumed_extents ? `. Dimensions that were not given: ${profile.assumed_extents}` : '');
  const figure = (value, title, text) => $('headline').append(make('div', { class: 'figure' }, make('h2', {}, title), make('b', {}, value), make('span', {}, text)));
  figure(nodes.length.toLocaleString('en'), 'Nodes', `of ${profile.nodes_as_read.toLocaleString('en')} as read, by ${profile.passes.length === 1 ? '1 pass' : `${profile.passes.length} passes`}`);
  figure(time(estimated) || '0 ms', 'A run, at least', 'one node after the other, at the peaks of this machine' + (unknown ? `; ${plural(unknown, 'node')} of unknown cost` : ''));
  if (flops > 0) figure(flopText(flops), 'Work of a run', profile.peaks ? `this machine reaches ${number(profile.peaks.gflops, 0)} GFLOP/s` : '');
  figure(bytes(memory.arena_bytes || 0), 'Arena, planned', `weights ${bytes(memory.weight_bytes || 0)}, packed ${bytes(memory.packed_bytes || 0)}; no plan needs less than ${bytes(memory.arena_lower_bound_bytes || 0)}`);
}
// Describes a change, for example as "makes FusedMatMul dense1 of Gemm dense1, Relu relu1".
function changeText(change) {
  const of = `${change.op} ${change.name}`, all = change.took || [], most = 6;
  const took = all.length > most ? `${all.slice(0, most).join(', ')} and ${all.length - most} more nodes` : all.join(', ');
  if (change.what === 'removed') return `removes ${of}`;
  if (change.what === 'folded') return `computes ${of} ahead: its result is a constant`;
  if (took) return change.what === 'made' ? `makes ${of} of ${took}` : `${of} takes over ${took}`;
  return (change.what === 'made' ? 'makes ' : 'changes ') + of;
}
function showPasses() {
  const most = 3, steps = profile.passes || [];
  if (!steps.length) { $('passes').hidden = true; return; }
  const rows = steps.map((step) => {
    const texts = step.changes.map(changeText), list = (part) => make('ul', {}, ...part.map((text) => make('li', {}, breakable(text))));
    const what = make('div', {}, list(texts.slice(0, most)));
    if (texts.length > most) what.append(make('details', {}, make('summary', {}, `and ${(texts.length - most).toLocaleString('en')} more`), list(texts.slice(most))));
    const name = make('button', { type: 'button', class: 'link', title: 'Nodes that it made or changed' }, step.pass);
    name.addEventListener('click', () => filterNodes(step.pass));
    return [name, `${step.nodes_before} \u2192 ${step.nodes_after}`, time(step.elapsed_us / 1e3) || '0 \u00b5s', what];
  });
  $('passes-table').append(scrolling('Table of passes', table(rows, ['pass', '#nodes', '#took', 'what it did'])));
  const views = profile.views || [];
  if (views.length) $('passes-table').append(make('p', { class: 'hint' }, `${plural(views.length, 'node')} of the optimised graph ${views.length === 1 ? 'needs' : 'need'} no instruction, as the result is a view or known before a run: ${shorten(views.map((v) => `${v.op} ${v.name}`).join(', '), 400)}.`));
}
