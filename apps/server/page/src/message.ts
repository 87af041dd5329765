// One message of a conversation.

import { copy_button, format_count, format_rate, h, icon, icon_button, logo } from './dom';
import { MarkdownView } from './markdown';
import { ProbabilityView } from './probabilities';
import type { Progress } from './complete';
import type { Message, Stats } from './store';

/** What a message can ask of the conversation it is in. */
export interface MessageActions {
  edit(message: Message, text: string): void;
  regenerate(message: Message): void;
  continue_from(message: Message): void;
  retry(message: Message): void;
  branch(message: Message, index: number, alternative: [string, number]): void;
  /** Shows the sibling that stands `step` further. */
  turn(message: Message, step: number): void;
}

export interface MessageState {
  is_running: boolean;
  live: string;  // while it runs
  is_last: boolean;
  is_busy: boolean;  // some answer of the conversation is running
  with_probabilities: boolean;
  position: number;  // among its siblings
  count: number;
}

export function stats_text(stats: Stats): string[] {
  const parts = [];
  if (Number.isFinite(stats.per_second)) parts.push(`${format_rate(stats.per_second)} tokens/s`);
  parts.push(`${format_count(stats.tokens)} tokens`);
  if (Number.isFinite(stats.prompt)) {
    parts.push(`prompt ${format_count(stats.prompt)}` +
      (Number.isFinite(stats.prompt_per_second) ? ` at ${format_rate(stats.prompt_per_second)} tokens/s` : ''));
  }
  if (stats.cached > 0) parts.push(`${format_count(stats.cached)} cached`);
  return parts;
}

/** How far an answer under way is. */
export function live_text({ prompt_done, prompt_total, tokens, per_second }: Progress): string {
  if (tokens === 0) return prompt_done < prompt_total ? `prompt: ${format_count(prompt_done)} of ${format_count(prompt_total)} tokens` : '';
  return `${format_count(tokens)} tokens` + (tokens > 4 && Number.isFinite(per_second) ? ` · ${format_rate(per_second)} tokens/s` : '');
}

export class MessageView {
  readonly element: HTMLElement;
  private readonly markdown = new MarkdownView();
  private readonly probabilities: ProbabilityView;
  private readonly body = h('div', { class: 'message-body' });
  private readonly reasoning = h('details', { class: 'reasoning' });
  private readonly reasoning_text = h('div', { class: 'reasoning-text' });
  private readonly reasoning_label = h('span', {}, 'Reasoning');
  private readonly footer = h('div', { class: 'message-footer' });
  private readonly live = h('span', { class: 'stats' });
  private footer_key = '';
  private was_thinking = false;

  constructor(readonly message: Message, private readonly actions: MessageActions) {
    this.probabilities = new ProbabilityView((index, alternative) => actions.branch(message, index, alternative));
    this.reasoning.append(h('summary', {}, this.reasoning_label), this.reasoning_text);
    this.element = h('article', { class: `message ${message.role}`, 'aria-label': message.role === 'user' ? 'You' : 'Answer', 'data-id': message.id },
      this.body, this.footer);
    if (message.role === 'assistant') this.body.before(this.reasoning);
  }

  show(state: MessageState): void {
    const { message } = this;
    if (this.element.classList.contains('editing')) return;
    this.element.classList.toggle('running', state.is_running);
    this.element.setAttribute('aria-busy', String(state.is_running));
    if (message.role === 'user') {
      if (this.body.textContent !== message.text) this.body.textContent = message.text;
    } else {
      this.show_answer(state);
    }
    this.show_footer(state);
  }

  private show_answer(state: MessageState): void {
    const { message } = this;
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      const is_thinking = state.is_running && message.text === '';
      if (this.reasoning_text.textContent !== message.reasoning) this.reasoning_text.textContent = message.reasoning;
      this.reasoning_label.textContent = is_thinking ? 'Thinking…' : 'Reasoning';
      // Open while it is all there is to see; after that it is up to the reader.
      if (is_thinking !== this.was_thinking) this.reasoning.open = is_thinking;
      this.was_thinking = is_thinking;
      if (is_thinking) this.reasoning_text.scrollTop = this.reasoning_text.scrollHeight;
    }
    if (state.with_probabilities && message.tokens?.length) {
      this.probabilities.show(message.tokens);
      if (this.body.firstChild !== this.probabilities.element) this.body.replaceChildren(this.probabilities.element);
    } else {
      this.markdown.show(message.text);
      if (this.body.firstChild !== this.markdown.element) this.body.replaceChildren(this.markdown.element);
    }
  }

  private show_footer(state: MessageState): void {
    const { message, actions } = this;
    this.live.textContent = state.live;
    const key = JSON.stringify([{ ...state, live: '' }, message.stats, message.error, message.finish, message.text === '']);
    if (key === this.footer_key) return;
    this.footer_key = key;
    if (state.is_running) {
      this.footer.replaceChildren(h('span', { class: 'waiting', role: 'img', 'aria-label': 'The answer is coming' }, h('i'), h('i'), h('i')), this.live);
      return;
    }
    const buttons: (HTMLElement | false)[] = [
      state.count > 1 && h('span', { class: 'versions' },
        icon_button('left', 'Earlier version', () => actions.turn(message, -1), { disabled: state.position === 0 }),
        `${state.position + 1}/${state.count}`,
        icon_button('right', 'Later version', () => actions.turn(message, 1), { disabled: state.position === state.count - 1 })),
      copy_button('Copy message', () => message.text),
      icon_button('edit', 'Edit', () => this.edit(), { disabled: state.is_busy }),
    ];
    if (message.role === 'assistant') {
      buttons.push(
        icon_button('again', 'Regenerate', () => actions.regenerate(message), { disabled: state.is_busy }),
        state.is_last && message.text !== '' && icon_button('more', 'Continue', () => actions.continue_from(message), { disabled: state.is_busy }));
    }
    const error = message.error && h('div', { class: 'error', role: 'alert' }, h('span', {}, message.error),
      state.is_last && h('button', { type: 'button', class: 'button', disabled: state.is_busy, onclick: () => actions.retry(message) }, 'Try again'));
    const ended = message.finish === 'length' ? 'cut off at the limit' : message.finish === 'cancelled' ? 'stopped' : '';
    const untold = state.with_probabilities && message.role === 'assistant' && message.text !== '' && !message.tokens?.length ? 'answered without probabilities' : '';
    const facts = [...(message.stats ? stats_text(message.stats) : []), ended, untold].filter((part) => part !== '');
    this.footer.replaceChildren(...[
      error || null,
      h('div', { class: 'message-tools' }, ...buttons.filter((b) => b !== false),
        facts.length > 0 && h('span', { class: 'stats' }, ...facts.map((part) => h('span', {}, part)))),
    ].filter((node) => node !== null));
  }

  edit(): void {
    const { message } = this;
    const text = h('textarea', { class: 'edit', 'aria-label': 'Text of the message', rows: Math.min(12, message.text.split('\n').length + 1) });
    text.value = message.text;
    const close = () => {
      this.element.classList.remove('editing');
      form.remove();
      this.body.hidden = this.footer.hidden = false;
    };
    const submit = () => {
      close();
      if (text.value.trim() !== '' || message.role === 'assistant') this.actions.edit(message, text.value);
    };
    const form = h('form', { class: 'edit-form', onsubmit: (event: Event) => {
      event.preventDefault();
      submit();
    } },
      text,
      h('div', { class: 'dialog-buttons' },
        h('button', { type: 'button', class: 'button', onclick: close }, 'Cancel'),
        h('button', { type: 'submit', class: 'button primary' }, message.role === 'user' ? 'Send' : 'Save')));
    text.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        close();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && message.role === 'user') {
        event.preventDefault();
        submit();
      }
    });
    this.element.classList.add('editing');
    this.body.hidden = this.footer.hidden = true;
    this.element.append(form);
    text.focus();
  }
}

interface Card { icon: 'bars' | 'layers' | 'columns'; title: string; text: string; open: () => void }

/** What a conversation without messages shows. */
export function welcome(model: string, facts: string, help: string, suggestions: { texts: string[]; choose: (text: string) => void }, cards: Card[]): HTMLElement {
  return h('div', { class: 'welcome' },
    logo(), h('h1', {}, model || 'imago'), h('p', { class: 'facts' }, facts), help !== '' && h('p', { class: 'facts' }, help),
    h('div', { class: 'suggestions', role: 'group', 'aria-label': 'Suggestions' }, ...suggestions.texts.map((text) =>
      h('button', { type: 'button', class: 'suggestion', onclick: () => suggestions.choose(text) }, text))),
    h('div', { class: 'cards' }, ...cards.map((card) =>
      h('button', { type: 'button', class: 'card', onclick: card.open }, icon(card.icon), h('strong', {}, card.title), h('span', {}, card.text)))));
}
