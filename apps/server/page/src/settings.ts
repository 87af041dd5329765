// Settings of this browser, and the panel that changes them.

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
  probabilities: boolean;
  theme: 'auto' | 'light' | 'dark';
}

const kDefaults: Settings = {
  model: '', system: '', temperature: '', top_k: '', top_p: '', min_p: '', repeat_penalty: '', max_tokens: '', seed: '', stop: '',
  probabilities: false, theme: 'auto',
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

settings.watch(({ theme }) => {
  if (theme === 'auto') delete document.documentElement.dataset['theme'];
  else document.documentElement.dataset['theme'] = theme;
});

interface Field { name: 'temperature' | 'top_k' | 'top_p' | 'min_p' | 'repeat_penalty' | 'max_tokens' | 'seed'; label: string; help: string; min: number; max: number; step: number }
const kFields: Field[] = [
  { name: 'temperature', label: 'Temperature', help: '0 always takes the likeliest token; higher is more varied.', min: 0, max: 10, step: 0.05 },
  { name: 'top_k', label: 'Top k', help: 'Only the k likeliest tokens; 0: all.', min: 0, max: 1000000, step: 1 },
  { name: 'top_p', label: 'Top p', help: 'The likeliest tokens that have this probability together.', min: 0, max: 1, step: 0.01 },
  { name: 'min_p', label: 'Min p', help: 'No tokens under this share of the likeliest one.', min: 0, max: 1, step: 0.01 },
  { name: 'repeat_penalty', label: 'Repeat penalty', help: '1 is off; higher avoids tokens that were there.', min: 0, max: 10, step: 0.01 },
  { name: 'max_tokens', label: 'Max tokens', help: 'The longest answer.', min: 1, max: 10000000, step: 1 },
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

export function settings_panel(): HTMLElement {
  const system = h('textarea', { rows: 4, id: 'set-system', placeholder: 'You are a helpful assistant.',
    onchange: () => change({ system: system.value }), oninput: () => change({ system: system.value }) });
  const stop = h('textarea', { rows: 2, id: 'set-stop', placeholder: 'One per line; \\n is a line break', oninput: () => change({ stop: stop.value }) });
  const inputs = kFields.map((field) => {
    const input = h('input', { type: 'number', id: `set-${field.name}`, min: field.min, max: field.max, step: field.step, placeholder: 'default',
      inputmode: field.step < 1 ? 'decimal' : 'numeric', 'aria-describedby': `help-${field.name}`,
      oninput: () => change({ [field.name]: input.validity.valid ? input.value : '' }) });
    return { field, input };
  });
  const fill = () => {
    const current = settings.get();
    system.value = current.system;
    stop.value = current.stop;
    for (const { field, input } of inputs) input.value = current[field.name];
  };
  fill();
  const theme = h('select', { id: 'set-theme', onchange: () => change({ theme: theme.value as Settings['theme'] }) },
    h('option', { value: 'auto' }, 'As the system'), h('option', { value: 'light' }, 'Light'), h('option', { value: 'dark' }, 'Dark'));
  settings.watch((current) => (theme.value = current.theme));
  return h('div', { class: 'panel-body' },
    h('div', { class: 'field' }, h('label', { for: 'set-system' }, 'System message'), system),
    h('div', { class: 'fields' }, ...inputs.map(({ field, input }) =>
      h('div', { class: 'field' }, h('label', { for: input.id }, field.label), input, h('p', { class: 'help', id: `help-${field.name}` }, field.help)))),
    h('div', { class: 'field' }, h('label', { for: 'set-stop' }, 'Stop at'), stop),
    h('div', { class: 'field' }, h('label', { for: 'set-theme' }, 'Colours'), theme),
    h('button', { type: 'button', class: 'button', onclick: () => {
      const { model, theme: kept, probabilities } = settings.get();
      change({ ...kDefaults, model, theme: kept, probabilities });
      fill();
    } }, 'Back to the defaults of the server'));
}
