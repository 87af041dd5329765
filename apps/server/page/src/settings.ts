// Settings of this browser, and the panel that changes them.

import { meta_of, request_json } from './api';
import { h, Signal } from './dom';

export interface Settings {
  model: string;
  system: string;
  temperature: string;  // empty: what the server takes
  top_k: string;
  top_p: string;
  min_p: string;
  repeat_penalty: string;
  max_tokens: string;
  seed: string;
  stop: string;  // one per line
  format: 'auto' | 'chat' | 'text';  // what a prompt is to the model
  probabilities: boolean;
  theme: 'auto' | 'light' | 'dark';
}

const kDefaults: Settings = {
  model: '', system: '', temperature: '', top_k: '', top_p: '', min_p: '', repeat_penalty: '', max_tokens: '', seed: '', stop: '',
  format: 'auto', probabilities: false, theme: 'auto',
};
const kKey = 'imago.settings';

function load(): Settings {
  const settings = { ...kDefaults };
  try {
    const saved = JSON.parse(localStorage.getItem(kKey) ?? '{}') as Record<string, unknown>;
    for (const name of Object.keys(kDefaults) as (keyof Settings)[]) {
      if (typeof saved[name] === typeof kDefaults[name]) Object.assign(settings, { [name]: saved[name] });
    }
  } catch { /* as if never saved */ }
  return settings;
}

export const settings = new Signal<Settings>(load());

export function change(part: Partial<Settings>): void {
  settings.set({ ...settings.get(), ...part });
  try {
    localStorage.setItem(kKey, JSON.stringify(settings.get()));
  } catch { /* full or forbidden: they last until the page closes */ }
}

const system_is_dark = matchMedia('(prefers-color-scheme: dark)');
export const is_dark = new Signal(false);
const show_theme = () => {
  const { theme } = settings.get();
  is_dark.set(theme === 'auto' ? system_is_dark.matches : theme === 'dark');
};
settings.watch(show_theme);
system_is_dark.addEventListener('change', show_theme);
is_dark.watch((dark) => (document.documentElement.dataset['theme'] = dark ? 'dark' : 'light'));

interface Field { name: 'temperature' | 'top_k' | 'top_p' | 'min_p' | 'repeat_penalty' | 'max_tokens' | 'seed'; label: string; help: string; min: number; max: number; step: number; server?: string }
const kFields: Field[] = [
  { name: 'temperature', label: 'Temperature', help: '0 always takes the likeliest token; higher is more varied.', min: 0, max: 10, step: 0.05 },
  { name: 'top_k', label: 'Top k', help: 'Only the k likeliest tokens; 0: all.', min: 0, max: 1000000, step: 1 },
  { name: 'top_p', label: 'Top p', help: 'The likeliest tokens that have this probability together.', min: 0, max: 1, step: 0.01 },
  { name: 'min_p', label: 'Min p', help: 'No tokens under this share of the likeliest one.', min: 0, max: 1, step: 0.01 },
  { name: 'repeat_penalty', label: 'Repeat penalty', help: '1 is off; higher avoids tokens that were there.', min: 0, max: 10, step: 0.01 },
  { name: 'max_tokens', label: 'Max tokens', help: 'The longest answer.', min: 1, max: 10000000, step: 1, server: 'n_predict' },
  { name: 'seed', label: 'Seed', help: 'The same seed gives the same answer.', min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
];

/** What the settings add to a request. Fields that are empty or not numbers are left to the server. */
export function sampling(): Record<string, unknown> {
  const body: Record<string, unknown> = {};
  const current = settings.get();
  for (const field of kFields) {
    const value = current[field.name].trim();
    if (value !== '' && Number.isFinite(Number(value))) body[field.name] = Number(value);
  }
  const stop = current.stop.split('\n').filter((line) => line !== '').map((line) => line.replaceAll('\\n', '\n').replaceAll('\\t', '\t'));
  if (stop.length) body['stop'] = stop;
  return body;
}

/** What `input` holds, and empty for what cannot be sent; says so beside it. Steps only guide the arrow keys. */
function checked(input: HTMLInputElement): string {
  const { badInput, rangeOverflow, rangeUnderflow } = input.validity;
  const is_wrong = badInput || rangeOverflow || rangeUnderflow;
  if (is_wrong) input.setAttribute('aria-invalid', 'true');
  else input.removeAttribute('aria-invalid');
  return is_wrong ? '' : input.value;
}

type Choice = 'format' | 'theme';
function choice_field(name: Choice, label: string, options: [value: string, text: string][], help = ''): HTMLElement {
  const select = h('select', { id: `set-${name}`, 'aria-describedby': help ? `help-${name}` : null, onchange: () => change({ [name]: select.value }) },
    ...options.map(([value, text]) => h('option', { value }, text)));
  settings.watch((current) => (select.value = current[name]));
  return h('div', { class: 'field' }, h('label', { for: select.id }, label), select, help !== '' && h('p', { class: 'help', id: `help-${name}` }, help));
}

export function settings_panel(): { element: HTMLElement; refresh: () => void } {
  const system = h('textarea', { rows: 4, id: 'set-system', placeholder: 'You are a helpful assistant.',
    oninput: () => change({ system: system.value }) });
  const stop = h('textarea', { rows: 2, id: 'set-stop', placeholder: 'One per line; \\n is a line break', oninput: () => change({ stop: stop.value }) });
  const inputs = kFields.map((field) => {
    const input = h('input', { type: 'number', id: `set-${field.name}`, min: field.min, max: field.max, step: field.step, placeholder: 'default',
      inputmode: field.step < 1 ? 'decimal' : 'numeric', 'aria-describedby': `help-${field.name}`,
      oninput: () => change({ [field.name]: checked(input) }) });
    return { field, input };
  });
  const fill = () => {
    const current = settings.get();
    system.value = current.system;
    stop.value = current.stop;
    for (const { field, input } of inputs) {
      input.value = current[field.name];
      checked(input);
    }
  };
  fill();
  // Empty fields show what the server takes.
  const refresh = () => {
    if (!meta_of(settings.get().model)?.loaded) return;
    request_json<{ default_generation_settings?: { params?: Record<string, unknown> } }>(`/props?model=${encodeURIComponent(settings.get().model)}`)
      .then(({ default_generation_settings }) => {
        for (const { field, input } of inputs) {
          const value = default_generation_settings?.params?.[field.server ?? field.name];
          const is_set = typeof value === 'number' && !(field.name === 'seed' && value === 0) && value !== -1;
          input.placeholder = is_set ? String(Number(value.toPrecision(6))) : field.name === 'seed' ? 'random' : field.name === 'max_tokens' ? 'no limit' : 'default';
        }
      }, () => {});
  };
  const element = h('div', { class: 'panel-body' },
    choice_field('format', 'Prompts are', [['auto', 'What the model is made for'], ['chat', 'Conversations'], ['text', 'Texts to continue']],
      'Models without a chat template continue a text; they were not made to answer.'),
    h('div', { class: 'field' }, h('label', { for: 'set-system' }, 'System message'), system),
    h('div', { class: 'fields' }, ...inputs.map(({ field, input }) =>
      h('div', { class: 'field' }, h('label', { for: input.id }, field.label), input, h('p', { class: 'help', id: `help-${field.name}` }, field.help)))),
    h('div', { class: 'field' }, h('label', { for: 'set-stop' }, 'Stop at'), stop),
    choice_field('theme', 'Colours', [['auto', 'As the system'], ['light', 'Light'], ['dark', 'Dark']]),
    h('button', { type: 'button', class: 'button', onclick: () => {
      const { model, theme: kept, probabilities } = settings.get();
      change({ ...kDefaults, model, theme: kept, probabilities });
      fill();
    } }, 'Back to the defaults of the server'));
  return { element, refresh };
}
