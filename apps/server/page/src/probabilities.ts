// An answer as its tokens, each tinted by its probability, with the alternatives of each.

import { h } from './dom';
import type { Token } from './store';

type Branch = (index: number, alternative: [string, number]) => void;

/** Text with its white space made visible. */
function visible(text: string): string {
  if (text === '') return '∅';
  return text.replaceAll(' ', '␣').replaceAll('\n', '⏎').replaceAll('\t', '⇥');
}

export function format_probability(probability: number): string {
  if (probability >= 0.9995) return '100 %';
  if (probability >= 0.0005) return `${(100 * probability).toFixed(1)} %`;
  return '< 0.1 %';
}

export class ProbabilityView {
  readonly element = h('div', { class: 'tokens', role: 'group', 'aria-label': 'Answer with probabilities; arrow keys move between tokens' });
  private tokens: Token[] = [];

  /** `branch` continues the answer from another token. */
  constructor(private readonly branch: Branch | null) {
    const at = (event: Event) => (event.target as Element).closest<HTMLElement>('.token');
    this.element.addEventListener('mouseover', (event) => this.open(at(event)));
    this.element.addEventListener('click', (event) => this.open(at(event)));
    this.element.addEventListener('focusin', (event) => this.open(at(event)));
    this.element.addEventListener('mouseleave', close_soon);
    this.element.addEventListener('focusout', close_soon);
    this.element.addEventListener('keydown', (event) => {
      const token = at(event);
      if (!token) return;
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = step === 1 ? token.nextElementSibling : step === -1 ? token.previousElementSibling : null;
      if (step) event.preventDefault();
      if (next instanceof HTMLElement) this.focus(next);
      if (event.key === 'Enter' || event.key === 'ArrowDown') {
        event.preventDefault();
        popover?.querySelector('button')?.focus();
      }
    });
  }

  show(tokens: Token[]): void {
    if (this.tokens !== tokens || this.element.children.length > tokens.length) this.element.replaceChildren();
    this.tokens = tokens;
    for (let i = this.element.children.length; i < tokens.length; i++) {
      const token = tokens[i]!;
      const probability = Math.exp(token.logprob);
      // One tab stop for the whole answer: arrows move inside.
      const span = h('span', { class: 'token', tabindex: i === 0 ? 0 : -1, 'data-index': i }, token.text || '·');
      // Steps of equal surprise look equal: half of 100 % differs as much as half of 10 %.
      if (token.top.length) span.style.setProperty('--tint', Math.min(1, -token.logprob / 4.6).toFixed(3));
      if (token.top.length) span.setAttribute('aria-label', `${token.text}, ${format_probability(probability)}`);
      this.element.append(span);
    }
  }

  private focus(token: HTMLElement): void {
    for (const other of this.element.querySelectorAll('[tabindex="0"]')) other.setAttribute('tabindex', '-1');
    token.tabIndex = 0;
    token.focus();
  }

  private open(span: HTMLElement | null): void {
    const index = Number(span?.dataset['index']);
    const token = this.tokens[index];
    if (!span || !token || token.top.length === 0) return;
    open_popover(span, token, this.branch && ((alternative) => this.branch!(index, alternative)));
  }
}

let popover: HTMLElement | null = null;
let anchor: HTMLElement | null = null;
let closing = 0;

function close_soon(): void {
  clearTimeout(closing);
  closing = setTimeout(() => {
    // The pointer or the focus may have moved from the token into the popover.
    if (popover?.matches(':hover, :focus-within') || anchor?.matches(':hover, :focus')) return;
    close_popover();
  }, 150);
}

/** Whether there was one to close. */
export function close_popover(): boolean {
  const was_open = popover !== null;
  popover?.remove();
  anchor?.classList.remove('open');
  popover = anchor = null;
  return was_open;
}

function open_popover(span: HTMLElement, token: Token, branch: ((alternative: [string, number]) => void) | null): void {
  clearTimeout(closing);
  if (anchor === span) return;
  close_popover();
  const rows: [string, number][] = token.top.some(([text, logprob]) => text === token.text || logprob === token.logprob)
    ? token.top : [...token.top, [token.text, token.logprob]];
  const rest = 1 - rows.reduce((sum, [, logprob]) => sum + Math.exp(logprob), 0);
  let is_marked = false;
  const list = rows.map(([text, logprob]) => {
    const probability = Math.exp(logprob);
    const chosen = !is_marked && (text === token.text || logprob === token.logprob);
    is_marked ||= chosen;
    const bar = h('span', { class: 'bar' });
    bar.style.setProperty('--share', String(probability));
    const cells = [bar, h('span', { class: 'alternative' }, visible(text)), h('span', { class: 'percent' }, format_probability(probability))];
    if (chosen || !branch) return h('div', { class: chosen ? 'row chosen' : 'row' }, ...cells);
    return h('button', { type: 'button', class: 'row', title: 'Continue from here with this token',
      onclick: () => {
        close_popover();
        branch([text, logprob]);
      } }, ...cells);
  });
  popover = h('div', { class: 'popover', role: 'dialog', 'aria-label': `Alternatives of ${visible(token.text)}` }, ...list,
    rest > 0.0005 && h('div', { class: 'row others' }, h('span', { class: 'alternative' }, 'all others'), h('span', { class: 'percent' }, format_probability(rest))),
    branch && h('p', { class: 'help' }, 'Choose another one to continue from there.'));
  popover.addEventListener('mouseleave', close_soon);
  popover.addEventListener('focusout', close_soon);
  popover.addEventListener('keydown', (event) => {
    if (event.key !== 'ArrowDown' && event.key !== 'ArrowUp') return;
    event.preventDefault();
    const buttons = [...popover!.querySelectorAll('button')];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement) + (event.key === 'ArrowDown' ? 1 : -1);
    if (at < 0) span.focus();
    else buttons[Math.min(at, buttons.length - 1)]?.focus();
  });
  document.body.append(popover);
  anchor = span;
  span.classList.add('open');
  const line = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const box = popover.getBoundingClientRect();
  const left = Math.max(8, Math.min(line.left, innerWidth - box.width - 8));
  const below = line.bottom + box.height + 8 < innerHeight;
  popover.style.left = `${left}px`;
  popover.style.top = `${below ? line.bottom + 2 : Math.max(8, line.top - box.height - 2)}px`;
}

document.addEventListener('pointerdown', (event) => {
  if (popover && !popover.contains(event.target as Node) && event.target !== anchor) close_popover();
});
document.addEventListener('scroll', () => close_popover(), true);
