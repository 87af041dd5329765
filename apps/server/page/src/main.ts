// The page: sidebar, header, the three views and the panel at the side.

import { keep_watch, load_models, meta_of, models, online } from './api';
import { ChatView } from './chat';
import { CompareView } from './compare';
import { conversation_list, conversations, create, current, start } from './conversations';
import { append, format_count, h, icon, icon_button, logo, Signal, size_text, type Icon } from './dom';
import { has_precision, PrecisionPanel } from './precision';
import { close_popover } from './probabilities';
import { has_state, ServerView } from './server';
import { change, is_dark, settings, settings_panel } from './settings';

type ViewName = 'chat' | 'compare' | 'server';
type PanelName = 'settings' | 'precision';
const view = new Signal<ViewName>('chat');
const panel = new Signal<PanelName | null>(null);
const narrow = matchMedia('(max-width: 800px)');

const precision = new PrecisionPanel();
const chat = new ChatView({ open_precision: () => open_panel('precision'), open_compare: () => go('compare') });
const compare = new CompareView();
const server = new ServerView();

// The address tells view and conversation, so that reload and the back button work.
function go(name: ViewName): void {
  view.set(name);
  app.classList.remove('sidebar-open');
  const hash = name !== 'chat' ? `#${name}` : current.get().messages.length ? `#chat=${current.get().id}` : '#';
  if (location.hash !== hash && !(hash === '#' && location.hash === '')) history.pushState(null, '', hash === '#' ? location.pathname + location.search : hash);
}

function follow_address(): void {
  const hash = location.hash.slice(1);
  if (hash === 'compare' || hash === 'server') {
    view.set(hash);
    return;
  }
  view.set('chat');
  const found = conversations.get().find((conversation) => `chat=${conversation.id}` === hash);
  if (found) current.set(found);
  else if (current.get().messages.length > 0) create();
}

// --- sidebar ---

function new_chat(): void {
  create();
  go('chat');
  chat.focus();
}

function view_button(name: ViewName, picture: Icon, label: string) {
  const button = h('button', { type: 'button', class: 'view-button', onclick: () => go(name) }, icon(picture), label);
  view.watch((shown) => {
    if (shown === name) button.setAttribute('aria-current', 'page');
    else button.removeAttribute('aria-current');
  });
  return button;
}

const server_button = view_button('server', 'pulse', 'Server');
has_state.watch((has) => (server_button.hidden = !has));
const theme_button = h('button', { type: 'button', class: 'view-button', onclick: () => change({ theme: is_dark.get() ? 'light' : 'dark' }) });
is_dark.watch((dark) => theme_button.replaceChildren(icon(dark ? 'sun' : 'moon'), dark ? 'Light' : 'Dark'));

const sidebar = h('aside', { class: 'sidebar', id: 'sidebar', 'aria-label': 'Conversations and views' },
  h('div', { class: 'sidebar-head' }, h('span', { class: 'brand' }, logo(), 'imago'),
    icon_button('close', 'Close the sidebar', () => close_sidebar(), { class: 'icon-button only-narrow' })),
  h('button', { type: 'button', class: 'button new-chat', title: 'New chat (Ctrl+K)', onclick: new_chat }, icon('plus'), 'New chat'),
  conversation_list(() => go('chat')),
  h('nav', { class: 'views', 'aria-label': 'Views' }, view_button('chat', 'chat', 'Chat'), view_button('compare', 'columns', 'Side by side'), server_button, theme_button));

// --- header ---

const picker = h('select', { class: 'picker', 'aria-label': 'Model', onchange: () => change({ model: picker.value }) });
const facts = h('span', { class: 'header-facts' });
function show_models(): void {
  const list = models.get();
  const { model } = settings.get();
  if (list.length > 0 && !list.some((other) => other.id === model)) {
    change({ model: list[0]!.id });
    return;  // the change calls this again
  }
  picker.replaceChildren(...list.map(({ id }) => h('option', { value: id }, id)));
  picker.value = model;
  picker.disabled = list.length === 0;
  const meta = meta_of(model);
  facts.textContent = meta ? [size_text(meta), meta.context && `context ${format_count(meta.context)}`].filter(Boolean).join(' · ') : '';
}

// The focus goes into a panel with its opening, and back to where it was.
let focused_before: HTMLElement | null = null;
function open_panel(name: PanelName | null): void {
  const had_focus = side_panel.contains(document.activeElement);
  if (name !== null && !had_focus) focused_before = document.activeElement as HTMLElement | null;
  panel.set(name);
  if (name !== null) close_panel.focus();
  else if (had_focus || narrow.matches) focused_before?.focus();
}

function panel_button(name: PanelName, picture: Icon, label: string) {
  const button = h('button', { type: 'button', class: 'toggle', 'aria-pressed': 'false', 'aria-label': label, title: label,
    onclick: () => open_panel(panel.get() === name ? null : name) }, icon(picture), h('span', { class: 'only-wide' }, label));
  panel.watch((shown) => button.setAttribute('aria-pressed', String(shown === name)));
  return button;
}
const precision_button = panel_button('precision', 'layers', 'Precision');
has_precision.watch((has) => {
  precision_button.hidden = !has;
  if (!has && panel.get() === 'precision') open_panel(null);
});

const menu_button = icon_button('menu', 'Conversations', () => {
  if (narrow.matches) {
    app.classList.add('sidebar-open');
    sidebar.querySelector<HTMLElement>('button')?.focus();
  } else {
    app.classList.toggle('sidebar-closed');
  }
}, { 'aria-controls': 'sidebar' });
const close_sidebar = () => {
  if (!app.classList.contains('sidebar-open')) return false;
  app.classList.remove('sidebar-open');
  menu_button.focus();
  return true;
};

const header = h('header', { class: 'header' },
  menu_button,
  picker, facts, h('span', { class: 'space' }), precision_button, panel_button('settings', 'gear', 'Settings'));

const banner = h('div', { class: 'banner', role: 'alert', hidden: true }, 'The server does not answer. Trying to reconnect…');
let was_online = true;
online.watch((is_online) => {
  banner.hidden = is_online;
  if (is_online && !was_online) {
    load_models().catch(() => {});
    if (panel.get() === 'precision') precision.refresh();
  }
  was_online = is_online;
});

// --- panel ---

const panel_title = h('h2', { id: 'panel-title' });
const close_panel = icon_button('close', 'Close', () => open_panel(null));
const panel_content = h('div', { class: 'panel-content' });
const side_panel = h('aside', { class: 'panel', hidden: true, 'aria-labelledby': 'panel-title' },
  h('div', { class: 'panel-head' }, panel_title, close_panel), panel_content);
const settings_body = settings_panel();

const main = h('main', { class: 'main', 'aria-label': 'View' });
const app = h('div', { class: 'app' }, sidebar,
  h('div', { class: 'scrim', onclick: () => {
    close_sidebar();
    open_panel(null);
  } }),
  h('div', { class: 'column' }, header, banner, main), side_panel);
append(document.body, [h('a', { class: 'skip', href: '#prompt', onclick: (event: Event) => {
  event.preventDefault();
  go('chat');
  chat.focus();
} }, 'Write a message'), app, h('div', { id: 'announcer', class: 'offscreen', role: 'status', 'aria-live': 'polite' })]);

panel.watch((name) => {
  side_panel.hidden = name === null;
  app.classList.toggle('panel-open', name !== null);
  if (name === null) return;
  panel_title.textContent = name === 'settings' ? 'Settings' : 'Precision live';
  panel_content.replaceChildren(name === 'settings' ? settings_body.element : precision.element);
  if (name === 'precision') precision.refresh();
  else settings_body.refresh();
});
view.watch((name) => {
  main.replaceChildren({ chat, compare, server }[name].element);
  server.open(name === 'server');
  if (name === 'compare') compare.refresh();
  if (name === 'chat') chat.open();
});
models.watch(show_models);
let shown_model = '';
settings.watch(({ model }) => {
  if (model === shown_model) return;
  shown_model = model;
  show_models();
  if (panel.get() === 'precision') precision.refresh();
  if (view.get() === 'compare') compare.refresh();
});
const show_title = () => {
  const { messages, title } = current.get();
  document.title = messages.length ? `${title} · imago` : 'imago';
};
current.watch(show_title);
conversations.watch(show_title);

document.addEventListener('keydown', (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === 'k') {
    event.preventDefault();
    new_chat();
  } else if (event.key === 'Escape' && !document.querySelector('dialog[open]')) {
    // The nearest thing first: what lies on top, then what is running.
    if (close_popover()) return;
    if (close_sidebar()) return;
    if (view.get() === 'chat' ? chat.stop() : view.get() === 'compare' && compare.stop()) return;
    else if (panel.get()) open_panel(null);
  }
});
addEventListener('popstate', follow_address);

start().then(() => {
  follow_address();
  // A conversation gets its address with its first message.
  conversations.watch(() => {
    const { id, messages } = current.get();
    if (view.get() === 'chat' && messages.length > 0 && location.hash !== `#chat=${id}`) history.replaceState(null, '', `#chat=${id}`);
  });
});
load_models().catch(() => {}).finally(keep_watch);
