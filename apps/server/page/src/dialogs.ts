// Questions to the user.

import { h } from './dom';

/** Opens a dialog; resolves with what `answer` returns when it is confirmed, null when it is cancelled. */
function ask<T>(title: string, confirm: string, content: HTMLElement[], answer: () => T, danger = false): Promise<T | null> {
  return new Promise((resolve) => {
    let result: T | null = null;
    const form = h('form', {
      method: 'dialog',
      onsubmit: (event: Event) => {
        event.preventDefault();
        result = answer();
        dialog.close();
      },
    },
      h('h2', {}, title), ...content,
      h('div', { class: 'dialog-buttons' },
        h('button', { type: 'button', class: 'button', onclick: () => dialog.close() }, 'Cancel'),
        h('button', { type: 'submit', class: danger ? 'button danger' : 'button primary' }, confirm)));
    const dialog = h('dialog', { 'aria-label': title }, form);
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

export function ask_key(was_wrong: boolean): Promise<{ key: string; remember: boolean } | null> {
  const key = h('input', { type: 'password', name: 'key', required: true, autocomplete: 'current-password', 'aria-label': 'API key' });
  const remember = h('input', { type: 'checkbox', name: 'remember' });
  return ask('API key', 'Use this key', [
    h('p', {}, was_wrong ? 'The server does not accept this key.' : 'This server asks for a key.'),
    key,
    h('label', { class: 'check' }, remember, 'Remember it in this browser'),
  ], () => ({ key: key.value.trim(), remember: remember.checked }));
}

export async function ask_delete(what: string): Promise<boolean> {
  return (await ask('Delete', 'Delete', [h('p', {}, what)], () => true, true)) ?? false;
}

export function ask_name(name: string): Promise<string | null> {
  const input = h('input', { type: 'text', name: 'name', maxlength: 200, 'aria-label': 'Name' });
  input.value = name;
  queueMicrotask(() => input.select());
  return ask('Rename', 'Rename', [input], () => input.value.trim());
}

/** A short message at the bottom of the window. */
export function toast(text: string): void {
  const element = h('div', { class: 'toast', role: 'status' }, text);
  document.body.append(element);
  setTimeout(() => element.remove(), 6000);
}
