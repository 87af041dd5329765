// The chat: messages, the box to write in, and the answers under way.

import { load_models, meta_of, models, text_of } from './api';
import { complete, continues_text, type Answer } from './complete';
import { conversations, current, keep, running } from './conversations';
import { announce, format_count, h, icon, icon_button, once_per_frame, size_text } from './dom';
import { live_text, MessageView, welcome, type MessageActions } from './message';
import { change, sampling, settings } from './settings';
import { add_message, leaf_under, path_of, siblings_of, type Conversation, type Message } from './store';

const kSaveInterval = 3000;  // ms between saves of an answer under way
const kMaxFileBytes = 1_000_000;
const kAlternatives = 5;
const kBeginnings = ['Up betimes, and to the office,', 'It was a cold morning in Baker Street when', 'Once upon a time'];
const kQuestions = ['Explain quantization to a ten-year-old.', 'Write a haiku about rounding errors.', 'Show a binary search in Python.'];

export interface ChatLinks {
  open_precision: () => void;
  open_compare: () => void;
}

export class ChatView {
  readonly element: HTMLElement;
  private readonly thread = h('div', { class: 'thread', role: 'log', 'aria-live': 'off', tabindex: -1 });
  private readonly scroller = h('div', { class: 'scroller' }, this.thread);
  private readonly input = h('textarea', { rows: 1, id: 'prompt', placeholder: 'Write a message', 'aria-label': 'Message' });
  private readonly send_button = h('button', { type: 'submit', class: 'send', 'aria-label': 'Send', title: 'Send (Enter)' }, icon('send'));
  private readonly to_end = icon_button('down', 'To the end', () => this.scroll_to_end(), { class: 'icon-button to-end', hidden: true });
  private readonly live = new Map<string, string>();  // by message: how far its answer is
  private views = new Map<string, MessageView>();
  private pinned = true;
  private shown: Conversation | null = null;

  constructor(private readonly links: ChatLinks) {
    const probabilities = h('button', { type: 'button', class: 'toggle', 'aria-pressed': 'false', title: 'Show how probable each token is, and what else was likely',
      onclick: () => change({ probabilities: !settings.get().probabilities }) }, icon('bars'), 'Probabilities');
    const legend = h('span', { class: 'legend', hidden: true }, 'likely', h('i'), 'surprising');
    const composer = h('form', { class: 'composer', onsubmit: (event: Event) => {
      event.preventDefault();
      if (this.is_busy()) this.stop();
      else this.send();
    } }, this.input, h('div', { class: 'composer-row' }, probabilities, legend, h('span', { class: 'hint' }, 'Enter sends · Shift+Enter new line · Ctrl+K new chat'), this.send_button));
    this.element = h('section', { class: 'chat', 'aria-label': 'Chat' }, this.scroller, h('div', { class: 'composer-area' }, this.to_end, composer));

    this.input.addEventListener('input', () => this.fit());
    this.input.addEventListener('keydown', (event) => {
      // On phones Enter is the only way to a new line.
      const touch = matchMedia('(pointer: coarse)').matches;
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && !touch) {
        event.preventDefault();
        if (!this.is_busy()) this.send();
      } else if (event.key === 'ArrowUp' && this.input.value === '' && !this.is_busy()) {
        const last = path_of(current.get()).reverse().find((message) => message.role === 'user');
        if (last) {
          event.preventDefault();
          this.views.get(last.id)?.edit();
        }
      }
    });
    this.element.addEventListener('dragover', (event) => event.preventDefault());
    this.element.addEventListener('drop', (event) => {
      event.preventDefault();
      this.insert_files([...(event.dataTransfer?.files ?? [])]);
    });
    this.scroller.addEventListener('scroll', () => {
      this.pinned = this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight < 48;
      this.to_end.hidden = this.pinned;
    }, { passive: true });
    // An answer under way keeps what it has when the page closes.
    addEventListener('pagehide', () => {
      for (const conversation of conversations.get()) if (running.get().has(conversation.id)) keep(conversation);
    });
    current.watch(() => this.render());
    running.watch(() => this.render());
    models.watch(() => this.render());
    settings.watch(({ probabilities: on }) => {
      probabilities.setAttribute('aria-pressed', String(on));
      legend.hidden = !on;
      this.render();
    });
  }

  /** After another view was shown. */
  open(): void {
    this.render();
    this.focus();
  }

  focus(): void {
    if (!matchMedia('(pointer: coarse)').matches) this.input.focus();
  }

  is_busy(): boolean {
    return running.get().has(current.get().id);
  }

  /** Whether there was an answer to stop. */
  stop(): boolean {
    const abort = running.get().get(current.get().id);
    abort?.abort();
    return abort !== undefined;
  }

  private fit(): void {
    this.input.style.height = 'auto';
    this.input.style.height = `${Math.min(this.input.scrollHeight, innerHeight * 0.4)}px`;
  }

  private async insert_files(files: File[]): Promise<void> {
    for (const file of files) {
      const text = file.size > kMaxFileBytes ? '\0' : await file.text();
      if (text.includes('\0')) {
        announce(`${file.name} is not a text, or too large`);
        continue;
      }
      const fence = '`'.repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map((run) => run[0].length + 1)));
      this.input.value += `${this.input.value ? '\n' : ''}${file.name}:\n${fence}\n${text.trimEnd()}\n${fence}\n`;
    }
    this.fit();
    this.input.focus();
  }

  private send(): void {
    const text = this.input.value.trim();
    if (text === '') return;
    const conversation = current.get();
    this.input.value = '';
    this.fit();
    const user = add_message(conversation, conversation.leaf, 'user', text);
    this.pinned = true;
    this.answer(conversation, user);
  }

  /** Answers the message `to` in a new message. */
  private answer(conversation: Conversation, to: Message): void {
    const message = add_message(conversation, to.id, 'assistant', '');
    this.generate(conversation, message);
  }

  /** Appends to `message` what the model says after it. */
  private async generate(conversation: Conversation, message: Message): Promise<void> {
    if (running.get().has(conversation.id)) return;
    const abort = new AbortController();
    running.get().set(conversation.id, abort);
    const with_probabilities = settings.get().probabilities;
    const answer = message as Message & Answer;
    answer.reasoning ??= '';
    if (!with_probabilities) answer.tokens = [];
    // Text without probabilities stands in for a token, so that tokens and text stay the same.
    else answer.tokens = message.tokens?.length || message.text === '' ? message.tokens ?? [] : [{ text: message.text, logprob: 0, top: [] }];
    delete message.error;
    delete message.finish;
    delete message.stats;
    message.model = settings.get().model;
    running.notify();
    keep(conversation);

    let saved = performance.now();
    const refresh = once_per_frame(() => {
      if (current.get() === conversation) this.update(message);
    });
    try {
      await complete({
        model: message.model, messages: request_messages(conversation, message), sampling: sampling(),
        alternatives: with_probabilities ? kAlternatives : 0,
      }, answer, abort.signal, (progress) => {
        this.live.set(message.id, live_text(progress));
        refresh();
        if (performance.now() - saved > kSaveInterval) {
          saved = performance.now();
          keep(conversation);
        }
      });
      announce('The answer is complete.');
    } catch (error) {
      message.finish = abort.signal.aborted ? 'cancelled' : 'error';
      if (!abort.signal.aborted) message.error = text_of(error);
    }
    if (!answer.reasoning) delete message.reasoning;
    if (!answer.tokens.length) delete message.tokens;
    conversation.changed = Date.now();
    this.live.delete(message.id);
    running.get().delete(conversation.id);
    running.notify();
    // A model that was loaded for this has facts now.
    if (!meta_of(message.model)?.loaded) load_models(true).catch(() => {});
    // The user may have deleted the conversation meanwhile.
    if (conversations.get().includes(conversation)) await keep(conversation);
  }

  private readonly actions: MessageActions = {
    edit: (message, text) => {
      const conversation = current.get();
      if (text === message.text && message.role === 'assistant') return;
      const edited = add_message(conversation, message.parent, message.role, text);
      if (message.role === 'assistant') edited.finish = 'stop';
      if (message.role === 'user') this.answer(conversation, edited);
      else keep(conversation).then(() => this.render());
    },
    regenerate: (message) => {
      const conversation = current.get();
      const to = conversation.messages.find((other) => other.id === message.parent);
      if (to) this.answer(conversation, to);
    },
    continue_from: (message) => void this.generate(current.get(), message),
    retry: (message) => void this.generate(current.get(), message),
    branch: (message, index, [text, logprob]) => {
      const conversation = current.get();
      const tokens = message.tokens;
      if (!tokens?.[index] || this.is_busy()) return;
      const kept = tokens.slice(0, index);
      const sibling = add_message(conversation, message.parent, 'assistant', kept.map((token) => token.text).join('') + text);
      sibling.tokens = [...kept, { text, logprob, top: tokens[index].top }];
      if (message.reasoning) sibling.reasoning = message.reasoning;
      this.generate(conversation, sibling);
    },
    turn: (message, step) => {
      const conversation = current.get();
      const siblings = siblings_of(conversation, message);
      const sibling = siblings[siblings.indexOf(message) + step];
      if (!sibling || this.is_busy()) return;
      conversation.leaf = leaf_under(conversation, sibling);
      keep(conversation);
      this.render();
    },
  };

  private render(): void {
    const conversation = current.get();
    const path = path_of(conversation);
    const is_new = this.shown !== conversation;
    if (is_new) this.views.clear();
    const views = new Map(path.map((message) => [message.id, this.views.get(message.id) ?? new MessageView(message, this.actions)]));
    const elements = [...views.values()].map((view) => view.element);
    if (path.length === 0) elements.push(this.welcome());
    if (elements.length !== this.thread.children.length || elements.some((element, i) => element !== this.thread.children[i])) {
      this.thread.replaceChildren(...elements);
    }
    this.views = views;
    this.shown = conversation;
    for (const message of path) this.show(message, conversation);
    this.input.placeholder = continues_text(settings.get().model) ? 'Begin a text' : 'Write a message';
    const busy = this.is_busy();
    this.send_button.replaceChildren(icon(busy ? 'stop' : 'send'));
    this.send_button.setAttribute('aria-label', busy ? 'Stop' : 'Send');
    this.send_button.title = busy ? 'Stop (Esc)' : 'Send (Enter)';
    this.send_button.classList.toggle('busy', busy);
    if (is_new) this.pinned = true;
    if (path.length === 0) this.scroller.scrollTop = 0;
    else if (this.pinned) this.scroll_to_end();
  }

  private show(message: Message, conversation: Conversation): void {
    const siblings = siblings_of(conversation, message);
    const is_busy = this.is_busy();
    const is_last = message.id === conversation.leaf;
    this.views.get(message.id)?.show({
      is_busy, is_last, is_running: is_busy && is_last, live: this.live.get(message.id) ?? '', with_probabilities: settings.get().probabilities,
      position: siblings.indexOf(message), count: siblings.length,
    });
  }

  /** After a piece of an answer: only its message changes. */
  private update(message: Message): void {
    if (!this.element.isConnected) return;  // another view is shown
    this.show(message, current.get());
    if (this.pinned) this.scroll_to_end();
  }

  private scroll_to_end(): void {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  private welcome(): HTMLElement {
    const id = settings.get().model;
    const meta = meta_of(id);
    const facts = meta ? [meta.architecture, size_text(meta), meta.parameters && `${format_count(meta.parameters)} parameters`,
      meta.context && `context ${format_count(meta.context)}`].filter(Boolean).join(' · ') : '';
    const is_text = continues_text(id);
    const suggest = (text: string) => {
      this.input.value = text;
      this.fit();
      this.focus();
    };
    const help = meta && is_text ? 'This model continues texts: write how one begins.' : '';
    return welcome(id, facts, help, { texts: is_text ? kBeginnings : kQuestions, choose: suggest }, [
      { icon: 'bars', title: 'Probabilities', text: 'See how sure the model was of every token, and continue from another one.',
        open: () => {
          change({ probabilities: true });
          this.focus();
        } },
      { icon: 'layers', title: 'Precision live', text: 'Change the types of the weights while the model runs, and take it back.', open: this.links.open_precision },
      { icon: 'columns', title: 'Side by side', text: 'One prompt at two precisions, streamed next to each other.', open: this.links.open_compare },
    ]);
  }
}

function request_messages(conversation: Conversation, message: Message): { role: string; content: string }[] {
  const messages: { role: string; content: string }[] = [];
  const { system } = settings.get();
  if (system.trim() !== '') messages.push({ role: 'system', content: system });
  for (const { role, text } of path_of(conversation, message.id)) {
    if (text === '') continue;  // answers that failed
    const last = messages[messages.length - 1];
    // Many chat templates refuse two messages of the user in a row.
    if (last?.role === role) last.content += `\n\n${text}`;
    else messages.push({ role, content: text });
  }
  return messages;
}
