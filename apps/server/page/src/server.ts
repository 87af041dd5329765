// The state of the server: requests, batch, cache, speeds.

import { is_absent, request_json, text_of } from './api';
import { format_bytes, format_count, format_rate, format_seconds, h, Signal } from './dom';
import { Plot, type Sample } from './plot';

interface Running { id: string | number; prompt_tokens: number; prompt_done: number; generated: number; max_tokens: number; seconds: number }
interface ModelState {
  id: string; loaded: boolean; type: string; bytes: number; parameters: number; context: number; architecture: string;
  running?: Running[]; waiting: number; page_tokens: number; pages: number; pages_used: number; pages_cached: number;
  requests: number; cancelled: number; refused: number; preemptions: number; steps: number; prompt_tokens: number; cached_tokens: number;
  generated_tokens: number; prompt_seconds: number; generate_seconds: number;
}
interface State { version: string; uptime_seconds: number; connections: number; models?: ModelState[] }

const kHistorySeconds = 120;
/** False once the server has said that it has no such endpoint. */
export const has_state = new Signal(true);

class ModelCard {
  readonly element: HTMLElement;
  private readonly facts = h('p', { class: 'facts' });
  private readonly numbers = h('dl', { class: 'numbers' });
  private readonly cache = h('div', { class: 'cache' });
  private readonly running = h('div', { class: 'running-table' });
  private readonly plots = {
    generation: new Plot('Generation', 'tokens/s', kHistorySeconds, format_rate),
    prompt: new Plot('Prompt', 'tokens/s', kHistorySeconds, format_rate),
    requests: new Plot('Requests running and waiting', '', kHistorySeconds, (value) => String(Math.round(value))),
    batch: new Plot('Batch', 'tokens a step', kHistorySeconds, format_rate),
    reused: new Plot('Prompt from the cache', 'tokens/s', kHistorySeconds, format_rate),
    cache: new Plot('Cache in use', '%', kHistorySeconds, (value) => value.toFixed(0)),
  };
  private readonly history: Record<keyof ModelCard['plots'], Sample[]> = { generation: [], prompt: [], requests: [], batch: [], reused: [], cache: [] };
  private last: { time: number; state: ModelState } | null = null;

  constructor(id: string) {
    this.element = h('section', { class: 'model-state', 'aria-label': id }, h('h2', {}, id), this.facts,
      h('div', { class: 'plots' }, ...Object.values(this.plots).map((plot) => plot.element)), this.cache, this.running, this.numbers);
  }

  show(state: ModelState, time: number): void {
    this.facts.textContent = state.loaded === false ? 'not loaded' : [state.architecture, state.type, format_bytes(state.bytes),
      `${format_count(state.parameters)} parameters`, `context ${format_count(state.context)}`].join(' · ');
    const running = state.running ?? [];
    const seconds = this.last ? (time - this.last.time) / 1000 : 0;
    // Counters are totals; a smaller one means that the server was started anew.
    const grown = (name: 'generated_tokens' | 'prompt_tokens' | 'cached_tokens' | 'steps') =>
      this.last ? Math.max(0, state[name] - this.last.state[name]) : 0;
    const rate = (name: Parameters<typeof grown>[0]) => (seconds > 0 ? grown(name) / seconds : 0);
    const add = (name: keyof ModelCard['plots'], value: number) => {
      const samples = this.history[name];
      if (this.last) samples.push({ time, value });
      while (samples.length && samples[0]!.time < time - 1000 * kHistorySeconds) samples.shift();
      this.plots[name].show(samples);
    };
    add('generation', rate('generated_tokens'));
    add('prompt', rate('prompt_tokens'));
    add('requests', running.length + state.waiting);
    add('batch', grown('steps') > 0 ? (grown('generated_tokens') + grown('prompt_tokens')) / grown('steps') : 0);
    add('reused', rate('cached_tokens'));
    add('cache', state.pages ? (100 * state.pages_used) / state.pages : 0);
    this.last = { time, state };

    const per_second = (tokens: number, of: number) => (of > 0 ? `${format_rate(tokens / of)} tokens/s` : '–');
    const seen = state.prompt_tokens + state.cached_tokens;
    this.numbers.replaceChildren(...([
      ['Waiting', String(state.waiting)], ['Requests', format_count(state.requests)], ['Cancelled', format_count(state.cancelled)], ['Refused', format_count(state.refused)],
      ['Preemptions', format_count(state.preemptions)], ['Generated', `${format_count(state.generated_tokens)}`],
      ['Prompt tokens', `${format_count(state.prompt_tokens)}`], ['From the cache', seen ? `${((100 * state.cached_tokens) / seen).toFixed(0)} %` : '–'],
      ['Mean prompt speed', per_second(state.prompt_tokens, state.prompt_seconds)], ['Mean generation', per_second(state.generated_tokens, state.generate_seconds)],
    ] as const).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));

    const free = Math.max(0, state.pages - state.pages_used - state.pages_cached);
    const parts = ([['used', state.pages_used], ['cached', state.pages_cached], ['free', free]] as const).map(([name, pages]) => {
      const part = h('span', { class: `cache-${name}` });
      part.style.flexGrow = String(pages);
      return { part, label: h('span', { class: `cache-label cache-label-${name}` }, `${format_count(pages)} ${name}`) };
    });
    this.cache.replaceChildren(
      h('div', { class: 'cache-head' }, h('strong', {}, 'Cache pages'), ...parts.map(({ label }) => label), h('span', {}, `of ${format_count(state.pages)}, ${state.page_tokens} tokens each`)),
      h('div', { class: 'cache-bar', role: 'img', 'aria-label': `${state.pages_used} used, ${state.pages_cached} cached, ${free} free` }, ...parts.map(({ part }) => part)));

    this.running.replaceChildren(...(running.length === 0 ? [] : [h('table', {},
      h('caption', {}, 'Requests under way'),
      h('thead', {}, h('tr', {}, ...['Request', 'Prompt', 'Generated', 'Time'].map((name, i) => h('th', { class: i ? 'align-right' : null }, name)))),
      h('tbody', {}, ...running.slice(0, 64).map((request) => h('tr', {},
        h('td', {}, String(request.id)),
        h('td', { class: 'align-right' }, request.prompt_done < request.prompt_tokens
          ? `${format_count(request.prompt_done)} of ${format_count(request.prompt_tokens)}` : format_count(request.prompt_tokens)),
        h('td', { class: 'align-right' }, `${format_count(request.generated)}${request.max_tokens > 0 ? ` of ${format_count(request.max_tokens)}` : ''}`),
        h('td', { class: 'align-right' }, format_seconds(request.seconds))))))]));
  }
}

export class ServerView {
  readonly element: HTMLElement;
  private readonly head = h('p', { class: 'facts' });
  private readonly list = h('div', {});
  private readonly cards = new Map<string, ModelCard>();
  private timer = 0;
  private is_open = false;

  constructor() {
    this.element = h('section', { class: 'server', 'aria-label': 'Server' }, h('h1', {}, 'Server'), this.head, this.list);
    document.addEventListener('visibilitychange', () => this.schedule(0));
  }

  open(is_open: boolean): void {
    if (is_open === this.is_open) return;
    this.is_open = is_open;
    this.schedule(0);
  }

  private schedule(delay: number): void {
    clearTimeout(this.timer);
    if (this.is_open && !document.hidden) this.timer = setTimeout(() => this.poll(), delay);
  }

  private async poll(): Promise<void> {
    const begun = performance.now();
    try {
      this.show(await request_json<State>('/imago/state'));
      has_state.set(true);
    } catch (error) {
      if (is_absent(error)) has_state.set(false);
      this.head.textContent = is_absent(error) ? 'This server does not tell its state.' : text_of(error);
      if (is_absent(error)) return;
    }
    this.schedule(Math.max(0, 1000 - (performance.now() - begun)));
  }

  private show(state: State): void {
    this.head.textContent = `imago ${state.version} · up ${format_seconds(state.uptime_seconds)} · ` +
      `${format_count(state.connections)} ${state.connections === 1 ? 'connection' : 'connections'}`;
    const time = performance.now();
    const shown = (state.models ?? []).map((model) => {
      const card = this.cards.get(model.id) ?? new ModelCard(model.id);
      card.show(model, time);
      return [model.id, card] as const;
    });
    const is_same = shown.length === this.cards.size && shown.every(([id]) => this.cards.has(id));
    this.cards.clear();
    for (const [id, card] of shown) this.cards.set(id, card);
    if (!is_same) this.list.replaceChildren(...shown.map(([, card]) => card.element));
  }
}
