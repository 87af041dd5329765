// Side by side: one prompt, two models or two precisions of one, at the same time.

import { load_models, meta_of, models, text_of } from './api';
import { complete, type Answer } from './complete';
import { announce, h, once_per_frame, size_text } from './dom';
import { live_text, stats_text } from './message';
import { format_options, load_types, type Format } from './precision';
import { sampling, settings } from './settings';

const kWarmTokens = 16;

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
  private readonly in_turns = h('input', { type: 'checkbox' });
  private readonly verdict = h('p', { class: 'verdict', role: 'status' });
  private readonly button = h('button', { type: 'submit', class: 'button primary' }, 'Run both');
  private abort: AbortController | null = null;
  private formats = new Map<string, Format[]>();

  constructor() {
    this.sides = [this.side('First'), this.side('Second')];
    const form = h('form', { class: 'compare-form', onsubmit: (event: Event) => {
      event.preventDefault();
      if (!this.stop()) this.run();
    } }, this.prompt, h('div', { class: 'compare-row' },
      h('label', { class: 'check', title: 'Always the likeliest token, so that only the precision makes a difference' }, this.greedy, 'Greedy (temperature 0)'),
      h('label', { class: 'check', title: 'At the same time both share the machine, and each is slower than alone' }, this.in_turns, 'One after the other, for the speeds'),
      h('span', { class: 'space' }), this.button));
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
    const formats = (this.formats.get(base) ?? []).filter(({ name }) => !ids.includes(`${base}@${name}`));
    const variant = (name: string) => `${base}@${name}`;
    this.sides.forEach((side, i) => {
      const chosen = side.select.value;
      const option = (id: string) => h('option', { value: id }, id);
      side.select.replaceChildren(h('optgroup', { label: 'Models' }, ...ids.map(option)), ...format_options(formats, variant));
      const all = [...ids, ...formats.map(({ name }) => variant(name))];
      const preferred = i === 0 ? settings.get().model : all.find((id) => id.endsWith('@q3_k')) ?? all.find((id) => id !== base);
      const keeps = chosen !== '' && all.includes(chosen) && (i === 0 || chosen !== this.sides[0].select.value || all.length === 1);
      side.select.value = keeps ? chosen : preferred ?? '';
    });
    this.show_sizes();
  }

  private show_sizes(): void {
    for (const side of this.sides) side.size.textContent = size_text(meta_of(side.select.value) ?? {}) || 'loaded on demand';
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
    const prompt = {
      messages: [...(system ? [{ role: 'system', content: system }] : []), { role: 'user', content }],
      sampling: { seed: Math.floor(Math.random() * 2 ** 31), ...sampling(), ...(this.greedy.checked ? { temperature: 0 } : {}) },
    };
    const refresh = once_per_frame(() => this.show());
    for (const side of this.sides) {
      side.answer = { text: '', reasoning: '', tokens: [] };
      side.stats.textContent = '';
      side.running = true;
    }
    this.show();
    const answer = async (side: Side) => {
      try {
        await complete({ ...prompt, model: side.select.value }, side.answer, abort.signal, (progress) => {
          side.stats.textContent = live_text(progress);
          refresh();
        });
        side.stats.replaceChildren(...stats_text(side.answer.stats!).map((part) => h('span', {}, part)));
      } catch (error) {
        side.stats.textContent = abort.signal.aborted ? 'stopped' : text_of(error);
      }
      side.running = false;
    };
    if (this.in_turns.checked) {
      // A model that was just loaded has cold caches, which its speed must not be blamed for.
      const warm_up = (side: Side) => complete({ ...prompt, model: side.select.value, sampling: { max_tokens: kWarmTokens } },
        { text: '', reasoning: '', tokens: [] }, abort.signal, () => {}).catch(() => {});
      for (const side of this.sides) await warm_up(side);
      for (const side of this.sides) await answer(side);
    } else {
      await Promise.all(this.sides.map(answer));
    }
    await load_models().catch(() => {});  // facts of models that were loaded for this
    this.abort = null;
    this.button.textContent = 'Run both';
    this.show();
    announce(this.verdict.textContent ?? '');
  }

  private show(): void {
    const [a, b] = this.sides.map((side) => (side.answer.reasoning && !side.answer.text ? side.answer.reasoning : side.answer.text).trimStart()) as [string, string];
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
    const same = at === 0 ? 'The texts differ from the first word.' : at > 0 ? `The texts first differ after ${words} ${words === 1 ? 'word' : 'words'}.`
      : is_done ? 'Both texts are the same.' : 'The same so far…';
    this.verdict.textContent = a === '' && b === '' ? '' : [same, ...(is_done ? this.ratios() : [])].join(' ');
  }

  /** How the second model compares with the first in size and, if they had the machine in turns, in speed. */
  private ratios(): string[] {
    const [first, second] = this.sides;
    const bytes = [first, second].map((side) => meta_of(side.select.value)?.bytes ?? NaN) as [number, number];
    const speed = [first, second].map((side) => side.answer.stats?.per_second ?? NaN) as [number, number];
    const parts = [];
    if (Math.abs(bytes[1] / bytes[0] - 1) > 0.005) {
      parts.push(`The second model takes ${Math.abs(100 * (bytes[1] / bytes[0] - 1)).toFixed(0)} % ${bytes[1] < bytes[0] ? 'less' : 'more'} memory`);
    }
    if (this.in_turns.checked && speed[1] / speed[0] > 0) {
      parts.push(`${parts.length ? '' : 'The second model '}generates ${(speed[1] / speed[0]).toFixed(2)} times as fast`);
    }
    return parts.length ? [`${parts.join(' and ')}.`] : [];
  }
}
