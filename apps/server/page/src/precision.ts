// Precision live: the types of a running model's matrices, and changing them.

import { is_absent, load_models, meta_of, models, request_json, text_of } from './api';
import { complete, type Answer } from './complete';
import { format_bytes, format_change, format_count, format_rate, h, icon, Signal } from './dom';
import { settings } from './settings';

interface Role { role: string; type: string; matrices: number; weights: number; bytes: number }
export interface Format { name: string; bits: number; block: boolean }
interface Types { type: string; bytes: number; can_undo: boolean; formats: Format[]; roles: Role[] }
interface Morphed { changed: number; misfits?: unknown[]; bytes_before: number; bytes_after: number; type: string; seconds: number }

/** False once the server has said that it has no such endpoint. */
export const has_precision = new Signal(true);

export async function load_types(model: string): Promise<Types | null> {
  try {
    const types = await request_json<Types>(`/imago/types?model=${encodeURIComponent(model)}`);
    has_precision.set(true);
    return types;
  } catch (error) {
    // A 404 may also mean that there is no such model.
    if (is_absent(error) && models.get().some((m) => m.id === model)) has_precision.set(false);
    throw error;
  }
}

/** Choices of a type, those of files first; `value` makes what a choice stands for. */
export function format_options(formats: Format[], value: (name: string) => string): HTMLElement[] {
  return ([['Block formats', true], ['Dtypes', false]] as const).map(([label, block]) => h('optgroup', { label },
    ...formats.filter((format) => format.block === block).map(({ name, bits }) =>
      h('option', { value: value(name) }, `${name} (${Number(bits.toFixed(2))})`))));
}

const kSpeedTokens = 64;
const kSpeedSeconds = 0.5;  // of generation; fast models answer several times

/** Tokens per second of short greedy answers: of the fastest, which was disturbed least. */
async function measure_speed(model: string, signal: AbortSignal): Promise<number> {
  let best = NaN;
  for (let seconds = 0; seconds < kSpeedSeconds;) {
    const answer: Answer = { text: '', reasoning: '', tokens: [] };
    await complete({ model, messages: [{ role: 'user', content: 'Count from one to a hundred in words: one, two, three,' }],
      sampling: { temperature: 0, max_tokens: kSpeedTokens, ignore_eos: true } }, answer, signal, () => {});
    const { per_second = NaN, tokens = 0 } = answer.stats ?? {};
    if (!(per_second > 0)) break;
    best = best >= per_second ? best : per_second;
    seconds += tokens / per_second;
  }
  return best;
}

/** The pattern that means a role. */
const pattern_of = (role: string) => (role === 'token_embedding' ? 'embedding' : role);

export class PrecisionPanel {
  readonly element = h('div', { class: 'panel-body precision' });
  private readonly about = h('dl', { class: 'about' });
  private readonly table = h('div', { class: 'roles' });
  private readonly what = h('input', { type: 'text', id: 'morph-what', list: 'morph-roles', placeholder: 'ffn, query, blk.0', required: true, autocomplete: 'off', spellcheck: 'false' });
  private readonly suggestions = h('datalist', { id: 'morph-roles' });
  private readonly type = h('select', { id: 'morph-type' });
  private readonly measure = h('input', { type: 'checkbox', checked: true, id: 'morph-measure' });
  private readonly apply_button = h('button', { type: 'submit', class: 'button primary' }, 'Change');
  private readonly undo_button = h('button', { type: 'button', class: 'button', onclick: () => this.run('/imago/undo') }, icon('undo'), 'Undo');
  private readonly progress = h('p', { class: 'progress', role: 'status' });
  private readonly results = h('ol', { class: 'results', 'aria-label': 'Changes' });
  private readonly speeds = new Map<string, number>();  // last measured, by model
  private shown = '';
  private is_busy = false;

  constructor() {
    this.element.append(
      this.about,
      h('form', { class: 'morph', onsubmit: (event: Event) => {
        event.preventDefault();
        this.run('/imago/morph');
      } },
        h('div', { class: 'field' }, h('label', { for: 'morph-what' }, 'Role, block or pattern'), this.what, this.suggestions),
        h('div', { class: 'field' }, h('label', { for: 'morph-type' }, 'Type (bits a weight)'), this.type),
        h('label', { class: 'check' }, this.measure, 'Measure the speed before and after'),
        h('div', { class: 'morph-buttons' }, this.apply_button, this.undo_button)),
      this.progress, this.results, this.table);
  }

  async refresh(): Promise<void> {
    const { model } = settings.get();
    if (model === '') return;
    if (model !== this.shown) this.results.replaceChildren();
    this.shown = model;
    try {
      const types = await load_types(model);
      if (types && this.shown === model) this.show(types);
    } catch (error) {
      this.table.replaceChildren();
      this.progress.textContent = text_of(error);
    }
  }

  private show(types: Types): void {
    const { model } = settings.get();
    const meta = meta_of(model);
    const speed = this.speeds.get(model);
    this.about.replaceChildren(...([
      ['Type', types.roles.some((row) => row.type !== types.type) ? `${types.type}, mixed` : types.type], ['Size', format_bytes(types.bytes)],
      ['Parameters', meta?.parameters ? format_count(meta.parameters) : '–'],
      ['Speed', speed ? `${format_rate(speed)} tokens/s` : 'not measured'],
    ] as const).map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
    const roles = [...new Set(types.roles.map((row) => row.role))];
    const rows = roles.flatMap((role) => types.roles.filter((row) => row.role === role));
    this.suggestions.replaceChildren(...['ffn', 'attention', ...roles.map(pattern_of), 'blk.0'].map((value) => h('option', { value })));
    const chosen = this.type.value || 'q4_k';
    this.type.replaceChildren(...format_options(types.formats, (name) => name));
    if (types.formats.some(({ name }) => name === chosen)) this.type.value = chosen;
    this.undo_button.disabled = !types.can_undo;
    const most = Math.max(...types.roles.map((row) => row.bytes), 1);
    this.table.replaceChildren(h('table', {},
      h('caption', { class: 'offscreen' }, 'Types by role'),
      h('thead', {}, h('tr', {}, h('th', {}, 'Role'), h('th', {}, 'Type'), h('th', { class: 'align-right' }, 'Matrices'), h('th', { class: 'align-right' }, 'Size'))),
      h('tbody', {}, ...rows.map((row, i) => {
        const size = h('td', { class: 'align-right size' }, format_bytes(row.bytes));
        size.style.setProperty('--share', String(row.bytes / most));
        return h('tr', {},
          h('td', {}, rows[i - 1]?.role !== row.role && h('button', { type: 'button', class: 'link-button', title: 'Choose this role',
            onclick: () => {
              this.what.value = pattern_of(row.role);
              this.type.focus();
            } }, row.role.replaceAll('_', ' '))),
          h('td', {}, h('code', {}, row.type)), h('td', { class: 'align-right' }, String(row.matrices)), size);
      }))));
  }

  private async run(path: '/imago/morph' | '/imago/undo'): Promise<void> {
    if (this.is_busy) return;
    const { model } = settings.get();
    const what = this.what.value.trim();
    const type = this.type.value;
    this.is_busy = true;
    this.apply_button.disabled = this.undo_button.disabled = true;
    const never = new AbortController().signal;
    try {
      let before = this.speeds.get(model) ?? NaN;
      if (this.measure.checked && !Number.isFinite(before)) {
        this.progress.textContent = 'Measuring the speed…';
        before = await measure_speed(model, never);
      }
      this.progress.textContent = path === '/imago/undo' ? 'Undoing…' : `Changing ${what} to ${type}…`;
      const result = await request_json<Morphed>(path, path === '/imago/undo' ? { model } : { model, pattern: what, type });
      let after = NaN;
      this.speeds.delete(model);
      if (this.measure.checked) {
        this.progress.textContent = 'Measuring the speed…';
        after = await measure_speed(model, never);
        this.speeds.set(model, after);
      }
      this.progress.textContent = '';
      this.results.prepend(this.result(path === '/imago/undo' ? 'Undone' : `${what} → ${type}`, result, before, after));
      while (this.results.children.length > 8) this.results.lastElementChild!.remove();
    } catch (error) {
      this.progress.textContent = text_of(error);
    }
    this.is_busy = false;
    this.apply_button.disabled = false;
    const message = this.progress.textContent;
    await Promise.all([load_models().catch(() => {}), this.refresh()]);
    if (message) this.progress.textContent = message;
  }

  private result(title: string, { changed, misfits = [], bytes_before, bytes_after, seconds }: Morphed, before: number, after: number): HTMLElement {
    const row = (name: string, from: string, to: string, difference: string, good: boolean) => h('div', { class: 'change' },
      h('span', { class: 'name' }, name), h('span', {}, `${from} → ${to}`), h('span', { class: good ? 'good' : 'bad' }, difference));
    return h('li', { class: 'result' },
      h('div', { class: 'result-head' }, h('strong', {}, title), h('span', {}, `${changed} ${changed === 1 ? 'matrix' : 'matrices'} in ${seconds.toFixed(2)} s`)),
      row('Size', format_bytes(bytes_before), format_bytes(bytes_after), format_change(bytes_before, bytes_after), bytes_after <= bytes_before),
      Number.isFinite(after) && row('Speed', format_rate(before), `${format_rate(after)} tokens/s`, format_change(before, after), !(after < before)),
      misfits.length > 0 && h('details', {}, h('summary', {}, `${misfits.length} did not fit and stay`),
        h('ul', {}, ...misfits.slice(0, 100).map((name) => h('li', {}, typeof name === 'string' ? name : JSON.stringify(name))))));
  }
}
