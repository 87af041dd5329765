// Side by side: one prompt, two models or two precisions of one, at the same time.

import { load_models, models, text_of } from './api';
import { complete, type Answer } from './complete';
import { announce, format_bytes, h, once_per_frame } from './dom';
import { stats_text } from './message';
import { load_types } from './precision';
import { sampling, settings } from './settings';

interface Side {
  select: HTMLSelectElement;
  size: HTMLElement;
  text: HTMLElement;
  stats: HTMLElement;
  answer: Answer;
  running: boolean;
}

/** Where two texts first differ, at the start of that word; -1 if the shorter one starts the longer one. */
export function first_difference(a: string, b: string): number {
  const length = Math.min(a.length, b.length);
  let at = 0;
  while (at < length && a[at] === b[at]) at++;
  if (at === length) return -1;
  while (at > 0 && /[\p{L}\p{N}]/u.test(a[at - 1]!)) at--;
  return at;
}

export class CompareView {
  readonly element: HTMLElement;
  private readonly sides: [Side, Side];
  private readonly prompt = h('textarea', { rows: 2, 'aria-label': 'Prompt for both', placeholder: 'A prompt for both' });
  private readonly greedy = h('input', { type: 'checkbox', checked: true });
  private readonly verdict = h('p', { class: 'verdict', role: 'status' });
  private readonly button = h('button', { type: 'submit', class: 'button primary' }, 'Run both');
  private abort: AbortController | null = null;
  private formats = new Map<string, string[]>();

  constructor() {
    this.sides = [this.side('First'), this.side('Second')];
    const form = h('form', { class: 'compare-form', onsubmit: (event: Event) => {
      event.preventDefault();
      if (!this.stop()) this.run();
    } }, this.prompt, h('div', { class: 'compare-row' },
      h('label', { class: 'check', title: 'Always the likeliest token, so that only the precision makes a difference' }, this.greedy, 'Greedy (temperature 0)'), this.button));
    this.prompt.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.abort) this.run();
    });
    this.element = h('section', { class: 'compare', 'aria-label': 'Side by side' }, form, this.verdict,
      h('div', { class: 'sides' }, ...this.sides.map((side, i) =>
        h('article', { class: 'side', 'aria-label': i ? 'Second answer' : 'First answer' },
          h('div', { class: 'side-head' }, side.select, side.size), side.text, side.stats))));
    models.watch(() => this.fill());
  }

  private side(name: string): Side {
    const select = h('select', { 'aria-label': `${name} model`, onchange: () => this.show_sizes() });
    return { select, size: h('span', { class: 'side-size' }), text: h('div', { class: 'side-text', tabindex: 0 }), stats: h('p', { class: 'stats' }),
      answer: { text: '', reasoning: '', tokens: [] }, running: false };
  }

  /** Asks which types the model can take, for the choice of both sides. */
  async refresh(): Promise<void> {
    const { model } = settings.get();
    const base = model.split('@')[0]!;
    if (base === '' || this.formats.has(base)) return;
    try {
      this.formats.set(base, (await load_types(base))?.formats ?? []);
      this.fill();
    } catch { /* then there are only the models themselves */ }
  }

  private fill(): void {
    const base = settings.get().model.split('@')[0]!;
    const ids = models.get().map((model) => model.id);
    const variants = (this.formats.get(base) ?? []).map((type) => `${base}@${type}`).filter((id) => !ids.includes(id));
    this.sides.forEach((side, i) => {
      const chosen = side.select.value;
      const option = (id: string) => h('option', { value: id }, id);
      side.select.replaceChildren(
        h('optgroup', { label: 'Models' }, ...ids.map(option)),
        ...(variants.length ? [h('optgroup', { label: `${base} in another precision` }, ...variants.map(option))] : []));
      const all = [...ids, ...variants];
      const preferred = i === 0 ? settings.get().model : all.find((id) => id.endsWith('@q3_k')) ?? all.find((id) => id !== base);
      const keeps = chosen !== '' && all.includes(chosen) && (i === 0 || chosen !== this.sides[0].select.value || all.length === 1);
      side.select.value = keeps ? chosen : preferred ?? '';
    });
    this.show_sizes();
  }

  private show_sizes(): void {
    for (const side of this.sides) {
      const meta = models.get().find((model) => model.id === side.select.value)?.meta;
      side.size.textContent = meta?.bytes ? [meta.type, format_bytes(meta.bytes)].filter(Boolean).join(' · ') : 'loaded on demand';
    }
  }

  /** Whether something was running. */
  stop(): boolean {
    const was_running = this.abort !== null;
    this.abort?.abort();
    return was_running;
  }

  private async run(): Promise<void> {
    const content = this.prompt.value.trim();
    if (content === '') {
      this.prompt.focus();
      return;
    }
    const abort = new AbortController();
    this.abort = abort;
    this.button.textContent = 'Stop';
    const system = settings.get().system.trim();
    // The same seed, so that chance is the same on both sides.
    const body = {
      messages: [...(system ? [{ role: 'system', content: system }] : []), { role: 'user', content }],
      seed: Math.floor(Math.random() * 2 ** 31), ...sampling(), ...(this.greedy.checked ? { temperature: 0 } : {}),
    };
    const refresh = once_per_frame(() => this.show());
    for (const side of this.sides) {
      side.answer = { text: '', reasoning: '', tokens: [] };
      side.stats.textContent = '';
      side.running = true;
    }
    this.show();
    await Promise.all(this.sides.map(async (side) => {
      try {
        await complete({ ...body, model: side.select.value }, side.answer, abort.signal, refresh);
        side.stats.replaceChildren(...stats_text(side.answer.stats!).map((part) => h('span', {}, part)));
      } catch (error) {
        side.stats.textContent = abort.signal.aborted ? 'stopped' : text_of(error);
      }
      side.running = false;
    }));
    this.abort = null;
    this.button.textContent = 'Run both';
    this.show();
    announce(this.verdict.textContent ?? '');
    await load_models().catch(() => {});
  }

  private show(): void {
    const [a, b] = this.sides.map((side) => (side.answer.reasoning && !side.answer.text ? side.answer.reasoning : side.answer.text)) as [string, string];
    let at = first_difference(a, b);
    const is_done = this.sides.every((side) => !side.running);
    if (at < 0 && is_done && a.length !== b.length) at = Math.min(a.length, b.length);
    this.sides.forEach((side, i) => {
      const text = i ? b : a;
      side.text.setAttribute('aria-busy', String(side.running));
      if (text === '' && side.running) {
        side.text.replaceChildren(h('span', { class: 'help' }, 'Waiting for the first token; a new precision is loaded first…'));
      } else if (at < 0) {
        side.text.replaceChildren(text);
      } else {
        const word = /^\s*\S+/.exec(text.slice(at))?.[0] ?? '';
        side.text.replaceChildren(h('span', { class: 'same' }, text.slice(0, at)), h('mark', {}, word || '∅'), h('span', { class: 'differs' }, text.slice(at + word.length)));
      }
    });
    const words = a.slice(0, Math.max(at, 0)).split(/\s+/).filter(Boolean).length;
    this.verdict.textContent = a === '' && b === '' ? '' : at >= 0 ? `The texts first differ after ${words} ${words === 1 ? 'word' : 'words'}.`
      : is_done ? 'Both texts are the same.' : 'The same so far…';
  }
}
