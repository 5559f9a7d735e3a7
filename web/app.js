// app.js - the page. Everything shown comes from the API and is put in with textContent; nothing is kept that a reload would lose.
// Three views by location hash: #/ the jobs, #/new the form, #/job/ID one run. One event stream for the whole tab says when to look again.

const view = document.getElementById('view');

// --- small tools ---

function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (v !== null && v !== undefined && v !== false) e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...children.filter(c => c !== null && c !== undefined).map(c => (typeof c === 'number' ? String(c) : c)));
  return e;
}

class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the server answered ${status}`);
    this.status = status;
    this.problems = problem.errors || [];
  }
}

async function api(path, body, method = body === undefined ? 'GET' : 'POST') {
  const options = { method, headers: {} };
  if (method !== 'GET') options.headers['Content-Type'] = 'application/json';
  if (body !== undefined) options.body = JSON.stringify(body);
  const answer = await fetch(path, options);
  const text = await answer.text();
  const type = answer.headers.get('Content-Type') || '';
  const value = type.includes('json') && text ? JSON.parse(text) : text;
  if (!answer.ok) throw new ApiError(answer.status, typeof value === 'object' ? value : { detail: value });
  return value;
}

// fn at most once in ms, and once more after the last call
function throttle(fn, ms) {
  let timer = null, again = false, busy = false;
  const run = async () => {
    timer = null;
    again = false;
    busy = true;
    try { await fn(); } catch (e) { console.warn(e); }
    busy = false;
    timer = setTimeout(() => { timer = null; if (again) run(); }, ms);
  };
  return () => { if (timer || busy) again = true; else run(); };
}

const bytes = n => {
  if (n === null || n === undefined) return '–';
  let i = 0, v = Number(n);
  while (v >= 1024 && i < 4) { v /= 1024; i++; }
  return `${i ? v.toFixed(v < 10 ? 2 : 1) : v} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][i]}`;
};
const percent = x => (x === null || x === undefined ? '–' : `${(100 * x).toFixed(1)} %`);
const number = (x, digits = 4) => (x === null || x === undefined ? '–' : Number(x).toFixed(digits));
const count = x => (x === null || x === undefined ? '–' : Math.round(x).toLocaleString('en'));
function duration(s) {
  if (s === null || s === undefined || !isFinite(s) || s < 0) return '–';
  s = Math.round(s);
  const h = Math.floor(s / 3600), m = Math.floor(s / 60) % 60;
  return h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}
const clock = t => (t ? new Date(t).toLocaleString() : '–');
const badge = s => el('span', { class: `state ${s}` }, s);
const jobName = j => j.name || j.id;
const cell = (text, cls = 'n') => el('td', { class: cls }, text);

function table(heads, rows) {
  return el('table', {}, el('thead', {}, el('tr', {}, ...heads.map(h => el('th', { class: h.endsWith('#') ? 'n' : '' }, h.replace('#', ''))))), el('tbody', {}, ...rows));
}

// --- the event stream: any event asks the open view to look again ---

let refresh = () => {};
let onEvent = () => {};
const link = document.getElementById('link');

function listen() {
  const stream = new EventSource('/v1/events');
  stream.onopen = () => { link.textContent = ''; refresh(); };
  stream.onerror = () => { link.textContent = 'connection lost, trying again…'; };
  for (const kind of ['reset', 'hello', 'metrics', 'state', 'job', 'created', 'deleted', 'checkpoint', 'advice', 'event', 'ready', 'error', 'exit', 'attempt', 'end'])
    stream.addEventListener(kind, e => { onEvent(kind, e.data); refresh(); });
  stream.onmessage = () => refresh();
}

const showSlots = throttle(async () => {
  const { items } = await api('/v1/devices');
  const used = items.filter(d => d.job).length;
  document.getElementById('slots').textContent = `${used} of ${items.length} device slots in use`;
}, 3000);

// --- #/ the jobs ---

async function showJobs() {
  const list = el('div', { class: 'panel' }, el('p', { class: 'quiet' }, 'Loading…'));
  const chosen = new Set();
  const compare = el('button', { disabled: true, onclick: () => { location.hash = `#/compare/${[...chosen].join(',')}`; } }, 'Compare');
  const filter = el('select', { 'aria-label': 'state', onchange: () => refresh() },
    ...['all states', 'queued', 'running', 'succeeded', 'failed', 'cancelled', 'paused'].map(s => el('option', { value: s === 'all states' ? '' : s }, s)));
  filter.style.width = 'auto';
  view.replaceChildren(el('div', { class: 'row end' }, el('h1', {}, 'Jobs'), el('span', { class: 'row' }, filter, compare, el('a', { class: 'button', href: '#/new' }, 'New job'))), list);
  refresh = throttle(async () => {
    showSlots();
    const { items } = await api(`/v1/jobs?limit=100${filter.value ? `&state=${filter.value}` : ''}`);
    if (!items.length) {
      list.replaceChildren(el('p', {}, 'No jobs yet. ', el('a', { href: '#/new' }, 'Submit one'), ', or run '), el('pre', {}, 'ringmaster submit examples/ring.json'));
      return;
    }
    list.replaceChildren(table(['', 'Job', 'Name', 'State', 'Progress', 'Ranks#', 'Created'], items.map(j => {
      const tick = el('input', { type: 'checkbox', 'aria-label': `compare ${j.id}`, onclick: e => {
        e.stopPropagation();
        if (e.target.checked) chosen.add(j.id); else chosen.delete(j.id);
        compare.disabled = chosen.size < 2 || chosen.size > 10;
      } });
      tick.checked = chosen.has(j.id);
      const done = j.max_steps ? Math.min(1, (j.step || 0) / j.max_steps) : 0;
      const bar = el('i');
      bar.style.width = `${100 * done}%`;
      return el('tr', { class: 'go', onclick: () => { location.hash = `#/job/${j.id}`; } },
        el('td', {}, tick), el('td', {}, el('a', { href: `#/job/${j.id}` }, j.id)), cell(j.name || '', 'name'), el('td', {}, badge(j.state), why(j)),
        el('td', {}, el('div', { class: 'bar' }, bar), el('span', { class: 'quiet' }, `${j.step || 0} of ${j.max_steps || '?'}`)), cell(j.ranks ?? '–'), cell(clock(j.created_at), 'quiet'));
    })));
  }, 1000);
  refresh();
}

function why(j) {
  const text = j.waiting ? j.waiting.text : j.state === 'failed' ? j.reason : '';
  return text ? el('div', { class: 'quiet' }, text) : null;
}

// --- #/job/ID one run ---

const CHARTS = [
  { title: 'loss', names: ['loss', 'eval_loss'], digits: 4 },
  { title: 'tokens per second', names: ['tokens_per_s'], digits: 0, zero: true },
  { title: 'communication share per rank (%)', names: ['comm_share'], ranks: true, factor: 100, digits: 1, zero: true },
  { title: 'straggler skew: slowest rank\'s own work over the mean', names: ['skew'], digits: 2 },
  { title: 'memory per rank (MiB), plan dashed', names: ['allocated_bytes'], ranks: true, factor: 1 / 2 ** 20, digits: 1, zero: true, plan: true },
  { title: 'step time by part, rank 0 (s)', names: ['data_s', 'forward_s', 'backward_s', 'reduce_s', 'optimizer_s', 'checkpoint_s'], stacked: true, digits: 3, zero: true },
  { title: 'GPU utilization per rank (%)', names: ['gpu_utilization'], ranks: true, factor: 100, digits: 0, zero: true },
  { title: 'GPU power per rank (W)', names: ['gpu_power_w'], ranks: true, digits: 0, zero: true },
  { title: 'gradient norm', names: ['grad_norm'], digits: 3, zero: true },
  { title: 'learning rate', names: ['learning_rate'], digits: 7, zero: true },
];
const COLORS = ['#b4472e', '#4a7ba6', '#5a8f5a', '#a8842c', '#7d5ba6', '#3f8f8f', '#a65b7d', '#7a7068'];

// [{name, points:[[step,value],…]}] -> rows [step, a, b, …]; null is a gap (NaN in the run)
function joinSeries(series, factor) {
  const steps = new Map();
  series.forEach((s, i) => {
    for (const [step, value] of s.points) {
      if (!steps.has(step)) steps.set(step, new Array(series.length).fill(undefined));
      steps.get(step)[i] = value === null ? NaN : value * factor;
    }
  });
  return [...steps.keys()].sort((a, b) => a - b).map(step => [step, ...steps.get(step).map(v => (v === undefined ? null : v))]);
}

class Chart {
  constructor(c) {
    this.c = c;
    this.plot = el('div', { class: 'plot' });
    this.root = el('section', { class: 'panel chart' }, el('h2', {}, c.title), this.plot);
    this.graph = null;
    new ResizeObserver(() => { if (this.graph) this.graph.resize(); }).observe(this.plot);      // the grid moves as charts appear
  }
  draw(series, planBytes) {
    const c = this.c;
    series = series.filter(s => s.points.length);
    this.root.hidden = series.length === 0;
    if (!series.length) return;
    const labels = series.map(s => (c.ranks ? `rank ${s.rank ?? 0}` : s.name));
    let rows = joinSeries(series, c.factor || 1);
    const extra = {};
    if (c.plan && planBytes) {
      labels.push('plan');
      rows = rows.map(r => [...r, planBytes * c.factor]);
      extra.plan = { strokePattern: [6, 4], color: '#7a7068' };
    }
    const options = {
      file: rows, labels: ['step', ...labels], colors: COLORS, stackedGraph: !!c.stacked, includeZero: !!c.zero, series: extra, connectSeparatedPoints: true,
      axes: { y: { axisLabelWidth: 62, valueFormatter: v => (v === null ? '–' : v.toFixed(c.digits)) } },
    };
    if (this.graph) this.graph.updateOptions(options);
    else this.graph = new Dygraph(this.plot, rows, { ...options, legend: 'follow', labelsSeparateLines: true, gridLineColor: 'rgba(128,120,110,.22)', axisLineColor: 'rgba(128,120,110,.4)', strokeWidth: 1.6, fillAlpha: .35, xlabel: '' });
  }
}

async function showJob(id) {
  const head = el('div'), charts = CHARTS.map(c => new Chart(c)), advice = el('div'), ranks = el('div', { class: 'panel' }), events = el('div', { class: 'panel' });
  const log = el('pre', { class: 'log' });
  const rankChoice = el('select', { 'aria-label': 'rank', onchange: () => refresh() }, el('option', { value: '0' }, 'rank 0'));
  const search = el('input', { placeholder: 'search the log', onchange: () => refresh() });
  const follow = el('input', { type: 'checkbox', checked: true });
  rankChoice.style.width = search.style.width = 'auto';
  log.addEventListener('scroll', () => { follow.checked = log.scrollTop + log.clientHeight >= log.scrollHeight - 8; });
  const details = el('pre');
  view.replaceChildren(head, advice, el('div', { class: 'charts' }, ...charts.map(c => c.root)), el('h2', {}, 'Ranks'), ranks, el('h2', {}, 'Log'),
    el('div', { class: 'panel' }, el('div', { class: 'row' }, rankChoice, search, el('label', {}, follow, ' follow'), el('a', { href: `/v1/jobs/${id}/logs?rank=0`, download: `${id}-rank-0.log` }, 'download')), log),
    el('h2', {}, 'Events'), events, el('details', {}, el('summary', {}, 'Spec'), el('div', { class: 'panel' }, details)));
  let shownState = '';
  const slow = throttle(async () => {
    const [attempts, history, checkpoints] = await Promise.all([api(`/v1/jobs/${id}/attempts`), api(`/v1/jobs/${id}/history?limit=50`), api(`/v1/jobs/${id}/checkpoints`)]);
    events.replaceChildren(
      attempts.items.length > 1 ? table(['Attempt', 'State', 'Why', 'Last step#'], attempts.items.map(a => el('tr', {}, el('td', {}, String(a.attempt)), el('td', {}, a.state || ''), cell([a.reason, a.detail].filter(Boolean).join(': '), 'name'), cell(a.last_step ?? '–')))) : '',
      table(['When', 'What', ''], history.items.map(e => el('tr', {}, cell(clock(e.at), 'quiet'), el('td', {}, e.kind), cell(eventText(e), 'name')))),
      checkpoints.items.length ? el('p', { class: 'quiet' }, `Checkpoints: ${checkpoints.items.map(c => `${c.step} (${bytes(c.bytes)})`).join(', ')}`) : '');
    const told = history.items.filter(e => e.kind === 'advice').slice(0, 3);
    advice.replaceChildren(...told.map(e => el('div', { class: 'notice' }, eventText(e))));
  }, 3000);
  refresh = throttle(async () => {
    showSlots();
    const j = await api(`/v1/jobs/${id}`);
    const names = [...new Set(CHARTS.filter(c => !c.ranks).flatMap(c => c.names)), 'slowest_rank'].join(','), perRank = CHARTS.filter(c => c.ranks).flatMap(c => c.names).join(',');
    const [one, all, rankList, text] = await Promise.all([
      api(`/v1/jobs/${id}/metrics?names=${names}&max_points=1000`), api(`/v1/jobs/${id}/metrics?names=${perRank}&rank=all&max_points=600`), api(`/v1/jobs/${id}/ranks`),
      api(`/v1/jobs/${id}/logs?rank=${rankChoice.value}&tail=500${search.value ? `&grep=${encodeURIComponent(search.value)}` : ''}`)]);
    const last = name => { const s = one.series.find(x => x.name === name); return s && s.points.length ? s.points[s.points.length - 1][1] : null; };
    drawHead(head, j, last, rankList.items);
    const plan = j.plan && j.plan.ranks ? Math.max(...j.plan.ranks.map(r => Number(r.peak_bytes || 0))) : 0;
    for (const c of charts) c.draw((c.c.ranks ? all : one).series.filter(s => c.c.names.includes(s.name)), plan);
    drawRanks(ranks, rankList.items, plan);
    if (rankChoice.options.length !== rankList.items.length && rankList.items.length) {
      const keep = rankChoice.value;
      rankChoice.replaceChildren(...rankList.items.map(r => el('option', { value: r.rank }, `rank ${r.rank}`)));
      rankChoice.value = keep;
    }
    const shown = text.split('\n').map(l => l.slice(l.lastIndexOf('\r', l.length - 2) + 1).replace(/\x1b\[[0-9;?]*[A-Za-z]/g, '')).join('\n') || 'nothing printed yet';
    if (log.textContent !== shown) log.textContent = shown;
    if (follow.checked) log.scrollTop = log.scrollHeight;
    if (!details.textContent) details.textContent = JSON.stringify(j.spec, null, 2);
    if (shownState !== j.state) { shownState = j.state; document.title = `${j.state} · ${jobName(j)} · Ringmaster`; }
    slow();
  }, 1000);
  refresh();
}

const eventText = e => {
  const d = e.data || {};
  if (typeof d.text === 'string') return d.text;
  if (e.kind === 'job') return [d.before ? `${d.before} → ${d.state}` : d.state, d.reason, d.detail].filter(Boolean).join(', ');
  if (e.kind === 'done') return `step ${d.step}, loss ${number(d.loss)}, ${count(d.tokens_per_s)} tokens/s`;
  if (e.kind === 'checkpoint') return `step ${d.step}: ${d.path}`;
  return Object.entries(d).filter(([, v]) => v !== null && typeof v !== 'object').map(([k, v]) => `${k} ${v}`).join(', ');
};

function drawHead(head, j, last, ranks) {
  const act = (verb, label, sure) => el('button', { onclick: async e => {
    if (sure && !confirm(sure)) return;
    e.target.disabled = true;
    try { await api(`/v1/jobs/${j.id}/${verb}`, {}); } catch (x) { alert(x.message); }
    refresh();
  } }, label);
  const live = ['queued', 'starting', 'running', 'stopping'].includes(j.state), done = j.max_steps ? Math.min(1, (j.step || 0) / j.max_steps) : 0;
  const bar = el('i');
  bar.style.width = `${100 * done}%`;
  const shares = ranks.map(r => r.metrics && r.metrics.comm_share).filter(x => typeof x === 'number');
  if (!shares.length && j.summary && typeof j.summary.comm_share === 'number') shares.push(j.summary.comm_share);
  const fact = (value, label) => el('div', {}, el('b', {}, value), el('span', {}, label));
  const parallel = j.plan && j.plan.parallel;
  head.replaceChildren(
    el('div', { class: 'row end' }, el('h1', {}, jobName(j), ' ', badge(j.state)),
      el('span', { class: 'row' },
        j.state === 'running' ? act('checkpoint', 'Save checkpoint') : null, j.state === 'running' ? act('pause', 'Pause') : null, j.state === 'paused' ? act('resume', 'Resume') : null,
        live || j.state === 'paused' ? act('cancel', 'Cancel', `Cancel ${j.id}?`) : null, el('a', { class: 'button', href: `#/new/${j.id}` }, 'Copy as new job'))),
    el('div', { class: 'bar' }, bar),
    el('div', { class: 'facts' }, fact(`${j.step || 0} of ${j.max_steps || '?'}`, 'steps'), fact(number(last('loss')), 'loss'), fact(count(last('tokens_per_s')), 'tokens/s'),
      fact(shares.length ? percent(Math.max(...shares)) : '–', 'communication share, highest rank'),
      fact(j.ranks > 1 ? number(last('skew'), 2) : '–', typeof last('slowest_rank') === 'number' && j.ranks > 1 ? `skew, rank ${last('slowest_rank')} slowest` : 'skew'), fact(live ? duration(last('eta_s')) : duration(j.run_ms ? j.run_ms / 1000 : null), live ? 'left' : 'ran'),
      fact(parallel ? `${parallel.dp ?? 1} × ${parallel.ring ?? 1} × ${parallel.ulysses ?? 1}` : '–', 'data × ring × Ulysses'), fact(`${j.attempt || 0}`, 'attempt')),
    parallel && parallel.why ? el('p', { class: 'quiet' }, parallel.why) : '',
    j.waiting ? el('div', { class: 'notice' }, j.waiting.text) : '',
    j.state === 'failed' ? el('div', { class: 'notice error' }, [j.reason, j.detail].filter(Boolean).join(': ')) : '');
}

function drawRanks(box, ranks, plan) {
  if (!ranks.length) { box.replaceChildren(el('p', { class: 'quiet' }, 'no rank is running')); return; }
  const steps = ranks.map(r => r.step || 0), ahead = Math.max(...steps);
  box.replaceChildren(table(['Rank', 'Pid#', 'State', 'Step#', 'Phase', 'Heartbeat#', 'Memory#', 'Plan#', 'Communication#', 'Waited#', 'Sent a step#'], ranks.map(r => {
    const m = r.metrics || {};
    return el('tr', {}, el('td', {}, String(r.rank)), cell(r.pid ?? '–'), el('td', {}, r.state || ''), cell(r.step ?? '–', ahead - (r.step || 0) > 1 ? 'n problems' : 'n'), el('td', {}, r.phase || ''),
      cell(r.heartbeat_age_s === undefined ? '–' : `${number(r.heartbeat_age_s, 1)} s`), cell(bytes(m.allocated_bytes)), cell(plan ? bytes(plan) : '–'), cell(percent(m.comm_share)),
      cell(m.comm_exposed_s === undefined ? '–' : `${number(m.comm_exposed_s, 3)} s`), cell(bytes(m.sent_bytes)));
  })));
}

// --- #/compare/IDS ---

async function showCompare(ids) {
  const box = el('div');
  view.replaceChildren(el('h1', {}, `Compare ${ids.replaceAll(',', ', ')}`), box);
  refresh = throttle(async () => {
    const c = await api(`/v1/compare?ids=${ids}&names=loss,tokens_per_s,comm_share`);
    const differences = Object.entries(c.differences);
    const charts = ['loss', 'tokens_per_s', 'comm_share'].map(name => {
      const chart = new Chart({ title: name.replaceAll('_', ' '), names: [name], digits: 4 });
      return [chart, c.jobs.map(j => ({ name: `${j.id} ${j.name || ''}`.trim(), points: (j.series.find(s => s.name === name) || { points: [] }).points }))];
    });
    box.replaceChildren(el('div', { class: 'panel' }, differences.length ? table(['Field', ...c.jobs.map(j => j.id)], differences.map(([k, v]) => el('tr', {}, el('td', {}, k), ...v.map(x => cell(JSON.stringify(x), 'name'))))) : 'The specs are the same.'),
      el('div', { class: 'charts' }, ...charts.map(([x]) => x.root)));
    for (const [chart, series] of charts) chart.draw(series);
  }, 3000);
  refresh();
}

// --- #/new the form ---

const SHORT = ['name', 'model', 'init', 'dataset', 'output_dir', 'max_length', 'packing', 'tuner_type', 'torch_dtype', 'nproc_per_node', 'sequence_parallel_size', 'sequence_parallel_method', 'max_steps',
  'num_train_epochs', 'learning_rate', 'gradient_accumulation_steps', 'save_steps', 'seed'];
const CATEGORY_COLORS = { weights: '#b4472e', gradients: '#a8842c', optimizer: '#7d5ba6', activations: '#4a7ba6', attention: '#3f8f8f', mlp: '#5a8f5a', logits: '#a65b7d', communication: '#7a7068', data: '#8f8f5a', workspace: '#9a6a4f' };

async function showForm(fromId) {
  const schema = await api('/v1/schema');
  const fields = Object.entries(schema.properties).sort((a, b) => a[1]['x-order'] - b[1]['x-order']);
  let spec = {};
  if (fromId) {
    const j = await api(`/v1/jobs/${fromId}`);
    for (const [k, v] of Object.entries(j.spec)) if (schema.properties[k] && JSON.stringify(v) !== JSON.stringify(schema.properties[k].default)) spec[k] = v;
  }
  const raw = el('textarea', { spellcheck: 'false', 'aria-label': 'spec as JSON' }), problems = el('div', { class: 'problems', role: 'alert' }), memory = el('div'), data = el('div');
  const boxes = {};
  const send = el('button', { class: 'main' }, 'Submit');

  const show = () => { raw.value = JSON.stringify(spec, null, 2); };
  const check = throttle(async () => {
    for (const b of Object.values(boxes)) { b.root.classList.remove('bad'); b.problem.textContent = ''; }
    problems.textContent = '';
    if (!spec.model || !spec.dataset || !spec.output_dir) { memory.replaceChildren(el('p', { class: 'quiet' }, 'model, dataset and output_dir are needed; then the memory of every rank is shown here.')); return; }
    try {
      const answer = await api('/v1/jobs:validate', spec);
      drawMemory(memory, answer.plan, spec);
    } catch (e) { memory.replaceChildren(); complain(e); }
  }, 700);
  const complain = e => {
    const rest = [];
    for (const p of e.problems || []) {
      const b = boxes[p.pointer.split('/')[1]];
      if (b) { b.root.classList.add('bad'); b.problem.textContent = p.message; } else rest.push(`${p.pointer} ${p.message}`);
    }
    problems.textContent = (e.problems || []).length ? rest.join('; ') : e.message;
  };
  const set = (name, value) => {
    if (value === undefined) delete spec[name]; else spec[name] = value;
    show();
    check();
  };

  const field = ([name, f]) => {
    const types = [].concat(f.type || 'list'), def = f.default;
    let input, fill;
    if (f.enum) {
      input = el('select', {}, ...f.enum.map(v => el('option', {}, v)));
      input.onchange = () => set(name, input.value === def ? undefined : input.value);
      fill = v => { input.value = v ?? def; };
    } else if (types[0] === 'boolean') {
      input = el('input', { type: 'checkbox' });
      input.onchange = () => set(name, input.checked === def ? undefined : input.checked);
      fill = v => { input.checked = v ?? def; };
    } else {
      input = el('input', { placeholder: def === undefined ? 'required' : def === null ? '' : typeof def === 'string' ? def : JSON.stringify(def), inputmode: ['integer', 'number'].includes(types[0]) ? 'decimal' : null });
      input.oninput = () => {
        const t = input.value.trim();
        if (t === '') { set(name, undefined); return; }
        if (['integer', 'number'].includes(types[0])) set(name, Number.isNaN(Number(t)) ? t : Number(t));
        else if (types[0] === 'list') set(name, t.startsWith('[') ? tryJson(t) : t.includes(',') ? t.split(',').map(s => s.trim()).filter(Boolean) : t);
        else if (types[0] === 'object') set(name, tryJson(t));
        else set(name, input.value);
      };
      fill = v => { input.value = v === undefined || v === null ? '' : typeof v === 'object' ? (Array.isArray(v) ? v.join(', ') : JSON.stringify(v)) : v; };
    }
    input.id = `f-${name}`;
    const problem = el('div', { class: 'problem' });
    const root = el('div', { class: 'field' }, el('label', { for: input.id }, name, f['x-unit'] ? el('span', { class: 'quiet' }, ` (${f['x-unit']})`) : null), input, problem, el('small', {}, f.description));
    boxes[name] = { root, problem, fill };
    return root;
  };
  const tryJson = t => { try { return JSON.parse(t); } catch { return t; } };
  const fillAll = () => { for (const [name, b] of Object.entries(boxes)) b.fill(spec[name]); };

  const groups = new Map();
  for (const f of fields) if (!SHORT.includes(f[0])) groups.set(f[1]['x-group'], [...(groups.get(f[1]['x-group']) || []), f]);
  const short = SHORT.map(n => fields.find(f => f[0] === n)).filter(Boolean).map(field);
  const more = [...groups].map(([group, list]) => el('div', {}, el('h2', {}, group), el('div', { class: 'fields' }, ...list.map(field))));
  raw.onchange = () => {
    try { spec = JSON.parse(raw.value); fillAll(); check(); } catch (e) { problems.textContent = `the JSON below cannot be read: ${e.message}`; }
  };
  send.onclick = async () => {
    send.disabled = true;
    try { const j = await api('/v1/jobs', spec); location.hash = `#/job/${j.id}`; } catch (e) { complain(e); }
    send.disabled = false;
  };
  const preview = el('button', { onclick: async () => {
    preview.disabled = true;
    data.replaceChildren(el('p', { class: 'quiet' }, 'Reading the data…'));
    try { drawData(data, await api('/v1/jobs:preview', spec)); } catch (e) {
      const list = e.problems || [];
      data.replaceChildren(el('div', { class: 'problems', role: 'alert' }, list.length ? list.map(p => `${p.pointer} ${p.message}`).join('; ') : e.message));
    }
    preview.disabled = false;
  } }, 'Preview data');
  const curl = el('button', { onclick: () => navigator.clipboard.writeText(`curl -X POST ${location.origin}/v1/jobs -H "Authorization: Bearer $RINGMASTER_TOKEN" -H 'Content-Type: application/json' -d '${JSON.stringify(spec).replaceAll("'", "'\\''")}'`) }, 'Copy as curl');
  const load = el('input', { type: 'file', accept: '.json', hidden: true, onchange: async () => { raw.value = await load.files[0].text(); raw.onchange(); } });
  const pasted = el('textarea', { placeholder: 'swift sft --model … --dataset …' }), told = el('div');
  const convert = el('button', { onclick: async () => {
    try {
      const answer = await api('/v1/import', { format: 'swift', text: pasted.value });
      spec = answer.spec;
      fillAll();
      show();
      check();
      told.replaceChildren(
        answer.supported ? '' : el('div', { class: 'notice error' }, 'Some flags cannot be kept; the job goes without them.'),
        table(['Flag', 'Value', 'Status', 'Field', 'Why'], answer.flags.map(f => el('tr', {}, cell(f.flag, 'name'), cell(f.value ?? '', 'name'), el('td', { class: f.status === 'unsupported' ? 'problems' : '' }, f.status),
          cell(f.field || '', 'name'), cell(f.why || '', 'name')))),
        answer.defaults.length ? table(['Default of ms-swift', 'Value', 'Why'], answer.defaults.map(f => el('tr', {}, cell(f.field, 'name'), cell(JSON.stringify(f.value), 'name'), cell(f.why || '', 'name')))) : '');
    } catch (e) { told.textContent = e.message; }
  } }, 'Turn into a job');
  view.replaceChildren(el('h1', {}, fromId ? `New job, from ${fromId}` : 'New job'),
    el('div', { class: 'panel' }, el('div', { class: 'fields' }, ...short), el('details', {}, el('summary', {}, 'All options'), ...more)),
    el('div', { class: 'panel' }, el('h2', {}, 'Memory of each rank'), memory, problems),
    el('div', { class: 'panel' }, el('div', { class: 'row end' }, el('h2', {}, 'Data'), preview), data),
    el('div', { class: 'row' }, send, curl, el('button', { onclick: () => load.click() }, 'Load a file'), load),
    el('details', { open: !!fromId }, el('summary', {}, 'As JSON'), raw),
    el('details', {}, el('summary', {}, 'Paste an ms-swift command'), pasted, convert, told));
  refresh = showSlots;
  fillAll();
  show();
  check();
  showSlots();
}

function drawMemory(box, plan, spec) {
  if (!plan || !plan.ranks) { box.replaceChildren(); return; }
  const limit = Number(spec.memory_limit_bytes || 0), top = Math.max(limit, ...plan.ranks.map(r => Number(r.peak_bytes)));
  const used = new Set();
  const bars = plan.ranks.slice(0, 16).map(r => {
    const parts = Object.entries(r.categories || {}).filter(([, b]) => Number(b) > 0).map(([name, b]) => {
      used.add(name);
      const i = el('i', { title: `${name}: ${bytes(b)}` });
      i.style.width = `${100 * Number(b) / top}%`;
      i.style.background = CATEGORY_COLORS[name] || '#999';
      return i;
    });
    return el('div', {}, el('span', { class: 'quiet' }, `rank ${r.rank}: ${bytes(r.peak_bytes)}`), el('div', { class: 'memory' }, ...parts));
  });
  const p = plan.parallel || {};
  box.replaceChildren(...bars, el('div', { class: 'legend' }, ...[...used].map(n => { const i = el('i'); i.style.background = CATEGORY_COLORS[n] || '#999'; return el('span', {}, i, n); })),
    el('p', { class: 'quiet' }, [plan.steps ? `${plan.steps} steps` : '', plan.policy ? `backward recomputes: ${plan.policy}` : '', p.why || ''].filter(Boolean).join(' · ')),
    ...(plan.warnings || []).map(w => el('div', { class: 'notice' }, w)));
}

// What the worker made of the data: counts, lengths, and the first documents with what is trained of them marked.
function drawData(box, p) {
  const fact = (value, label) => el('div', {}, el('b', {}, value), el('span', {}, label));
  const dropped = [p.dropped_too_long ? `${count(p.dropped_too_long)} too long` : '', p.dropped_untrained ? `${count(p.dropped_untrained)} with nothing to train` : ''].filter(Boolean).join(', ');
  const most = Math.max(1, ...p.histogram.map(b => b.documents));
  const bars = p.histogram.map(b => {
    const bar = el('i');
    bar.style.width = `${100 * b.documents / most}%`;
    return el('tr', {}, cell(count(b.tokens_up_to)), el('td', { class: 'wide' }, el('div', { class: 'bar' }, bar)), cell(count(b.documents)));
  });
  const part = t => (t.skipped_tokens ? el('span', { class: 'quiet' }, ` … ${count(t.skipped_tokens)} tokens … `) : t.trained ? el('mark', {}, t.text) : el('span', {}, t.text));
  box.replaceChildren(
    el('div', { class: 'facts' }, fact(count(p.documents), 'documents'), fact(count(p.rows), 'rows'), p.val_rows ? fact(count(p.val_rows), 'rows to evaluate') : null, fact(percent(p.packing_efficiency), 'of the rows filled'),
      fact(count(p.tokens), 'tokens'), fact(percent(p.tokens ? p.tokens_trained / p.tokens : null), 'of them trained'), fact(count(p.longest), 'tokens in the longest')),
    dropped ? el('div', { class: 'notice' }, `Left out: ${dropped}`) : '',
    table(['Tokens up to#', '', 'Documents#'], bars),
    el('p', { class: 'quiet' }, 'The first documents; what is trained is ', el('mark', {}, 'marked'), '.'),
    ...p.samples.map((d, i) => el('details', { open: i === 0 }, el('summary', {}, `Document ${i + 1}: ${count(d.tokens)} tokens, ${count(d.trained)} trained`), el('pre', { class: 'log' }, ...d.parts.map(part)))));
}

// --- which view ---

async function route() {
  const [, name, arg] = location.hash.split('/');
  refresh = () => {};
  document.title = 'Ringmaster';
  try {
    if (name === 'job' && arg) await showJob(decodeURIComponent(arg));
    else if (name === 'new') await showForm(arg && decodeURIComponent(arg));
    else if (name === 'compare' && arg) await showCompare(decodeURIComponent(arg));
    else await showJobs();
  } catch (e) {
    const hint = e.status === 401 ? 'Open the address with ?token=… that ringmasterd printed when it started.' : '';
    view.replaceChildren(el('h1', {}, 'This could not be shown'), el('p', {}, e.message), el('p', { class: 'quiet' }, hint));
  }
}
window.addEventListener('hashchange', route);
route();
listen();
