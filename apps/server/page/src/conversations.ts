// The conversations of this browser, and the one that is shown.

import { h, icon, icon_button, Signal } from './dom';
import { ask_delete, ask_name, toast } from './dialogs';
import { export_text, import_text, is_persistent, load_all, new_conversation, remove, save, type Conversation } from './store';

export const conversations = new Signal<Conversation[]>([]);
export const current = new Signal<Conversation>(new_conversation());
/** The answers under way, by conversation. */
export const running = new Signal<Map<string, AbortController>>(new Map());

const kMaxImportBytes = 256 * 1024 * 1024;
let was_full = false;

export async function start(): Promise<void> {
  try {
    conversations.set(await load_all());
  } catch {
    toast('The conversations of this browser could not be read.');
  }
  if (!is_persistent) toast('This browser keeps no conversations: they last until the page closes.');
}

/** Keeps a conversation and moves it to the top of the list. */
export async function keep(conversation: Conversation): Promise<void> {
  const others = conversations.get().filter((other) => other !== conversation);
  conversations.set([conversation, ...others].sort((a, b) => b.changed - a.changed));
  try {
    await save(conversation);
    was_full = false;
  } catch {
    if (!was_full) toast('The browser has no more room: this conversation is not kept. Export or delete some conversations.');
    was_full = true;
  }
}

export function create(): void {
  if (current.get().messages.length > 0) current.set(new_conversation());
  else current.notify();
}

async function drop(conversation: Conversation): Promise<void> {
  if (!(await ask_delete(`“${conversation.title}” will be gone for good.`))) return;
  running.get().get(conversation.id)?.abort();
  conversations.set(conversations.get().filter((other) => other !== conversation));
  if (current.get() === conversation) current.set(new_conversation());
  await remove(conversation.id).catch(() => toast('The conversation could not be deleted.'));
}

async function rename(conversation: Conversation): Promise<void> {
  const name = await ask_name(conversation.title);
  if (!name) return;
  conversation.title = name;
  conversation.named = true;
  conversations.notify();
  current.notify();
  await keep(conversation);
}

function save_file(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function export_some(list: Conversation[]): void {
  const name = list.length === 1 ? list[0]!.title.replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 40) : 'conversations';
  save_file(`imago-${name}.json`, export_text(list));
}

function import_file(): void {
  const input = h('input', { type: 'file', accept: '.json,application/json' });
  input.addEventListener('change', async () => {
    const file = input.files?.[0];
    if (!file) return;
    try {
      if (file.size > kMaxImportBytes) throw new Error('The file is too large.');
      const list = import_text(await file.text());
      for (const conversation of list) {
        // What is here already is replaced by the file only if the file is newer.
        const here = conversations.get().find((other) => other.id === conversation.id);
        if (here && here.changed >= conversation.changed) continue;
        conversations.set(conversations.get().filter((other) => other !== here));
        await keep(conversation);
        if (here && here === current.get()) current.set(conversation);
      }
      toast(list.length === 1 ? '1 conversation imported.' : `${list.length} conversations imported.`);
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error));
    }
  });
  document.body.append(input);  // some browsers only open inputs that are in the page
  input.hidden = true;
  input.click();
  setTimeout(() => input.remove(), 60_000);
}

function day_of(time: number): string {
  const days = Math.floor((new Date().setHours(24, 0, 0, 0) - time) / 86_400_000);
  return days <= 0 ? 'Today' : days === 1 ? 'Yesterday' : days < 7 ? 'This week' : days < 31 ? 'This month' : 'Earlier';
}

/** The list in the sidebar; `opened` is called when one is chosen. */
export function conversation_list(opened: () => void): HTMLElement {
  const search = h('input', { type: 'search', placeholder: 'Search', 'aria-label': 'Search conversations', oninput: () => show() });
  const list = h('nav', { class: 'conversations', 'aria-label': 'Conversations' });
  const show = () => {
    const words = search.value.toLowerCase().trim();
    const shown = conversations.get().filter((c) => !words || c.title.toLowerCase().includes(words) ||
      c.messages.some((message) => message.text.toLowerCase().includes(words)));
    let day = '';
    list.replaceChildren(...shown.flatMap((conversation) => {
      const is_current = conversation === current.get();
      const item = h('div', { class: is_current ? 'conversation current' : 'conversation' },
        h('button', { type: 'button', class: 'open', 'aria-current': is_current ? 'true' : null, title: conversation.title,
          onclick: () => {
            current.set(conversation);
            opened();
          } }, conversation.title, running.get().has(conversation.id) && h('span', { class: 'pulse', 'aria-label': 'answering' })),
        h('span', { class: 'conversation-tools' },
          icon_button('edit', 'Rename', () => rename(conversation)),
          icon_button('save', 'Export', () => export_some([conversation])),
          icon_button('trash', 'Delete', () => drop(conversation))));
      const next = day_of(conversation.changed);
      const head = next === day ? [] : [h('h3', {}, next)];
      day = next;
      return [...head, item];
    }));
    if (shown.length === 0) list.append(h('p', { class: 'help' }, words ? 'Nothing found.' : 'Conversations stay in this browser.'));
    search.hidden = conversations.get().length < 6 && !words;
    export_all.disabled = conversations.get().length === 0;
  };
  const export_all = h('button', { type: 'button', class: 'text-button', onclick: () => export_some(conversations.get()) }, icon('save'), 'Export all');
  const files = h('div', { class: 'sidebar-files' }, export_all,
    h('button', { type: 'button', class: 'text-button', onclick: import_file }, icon('load'), 'Import'));
  conversations.watch(show);
  current.watch(show);
  running.watch(show);
  return h('div', { class: 'conversation-list' }, search, list, files);
}
