// Markdown of models to DOM nodes. Nothing is ever parsed as HTML, and every scan is bounded: text of a model is hostile.

import { copy_button, h } from './dom';
import { highlight } from './highlight';

interface Paragraph { kind: 'paragraph'; text: string }
interface Heading { kind: 'heading'; level: number; text: string }
interface Code { kind: 'code'; language: string; text: string }
interface Quote { kind: 'quote'; blocks: Block[] }
interface List { kind: 'list'; ordered: boolean; start: number; items: Block[][] }
interface Table { kind: 'table'; head: string[]; align: string[]; rows: string[][] }
interface Rule { kind: 'rule' }
export type Block = (Paragraph | Heading | Code | Quote | List | Table | Rule) & { source: string };

const kMaxDepth = 10;         // of quotes and lists; deeper ones stay text
const kMaxEmphasis = 12;
const kMaxLinkText = 1000;    // characters that are searched for the end of a link
const kMaxColumns = 100;      // of a table
const kHighlighted = 30_000;  // longer code keeps one colour

const kFence = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const kHeading = /^ {0,3}(#{1,6})(?:\s+(.*))?$/;
const kRule = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
// A number alone is an answer, not an empty item.
const kItem = /^( *)([-*+](?= |$)|\d{1,9}[.)](?= +\S))( *)(.*)$/;
const kQuote = /^ {0,3}> ?/;

const indent_of = (line: string) => line.length - line.trimStart().length;
const is_blank = (line: string | undefined) => line === undefined || line.trim() === '';

export function parse(text: string): Block[] {
  return parse_lines(text.replaceAll('\r\n', '\n').replaceAll('\t', '    ').split('\n'), 0);
}

function parse_lines(lines: string[], depth: number): Block[] {
  const blocks: Block[] = [];
  let at = 0;
  const add = (block: Paragraph | Heading | Code | Quote | List | Table | Rule, end: number) => {
    blocks.push({ ...block, source: lines.slice(at, end).join('\n') });
    at = end;
  };
  while (at < lines.length) {
    const line = lines[at]!;
    if (is_blank(line)) {
      at++;
      continue;
    }
    const fence = kFence.exec(line);
    if (fence) {
      let end = at + 1;
      while (end < lines.length && !closes(lines[end]!, fence[1]!)) end++;
      const indent = indent_of(line);
      const body = lines.slice(at + 1, end).map((l) => l.slice(Math.min(indent, indent_of(l))));
      add({ kind: 'code', language: fence[2]!.trim().split(' ', 1)[0]!, text: body.join('\n') }, Math.min(end + 1, lines.length));
      continue;
    }
    const heading = kHeading.exec(line);
    if (heading) {
      add({ kind: 'heading', level: heading[1]!.length, text: (heading[2] ?? '').replace(/\s#+\s*$/, '') }, at + 1);
      continue;
    }
    if (kRule.test(line)) {
      add({ kind: 'rule' }, at + 1);
      continue;
    }
    if (depth < kMaxDepth && kQuote.test(line)) {
      let end = at + 1;
      while (end < lines.length && (kQuote.test(lines[end]!) || (!is_blank(lines[end]) && !starts_block(lines[end]!)))) end++;
      add({ kind: 'quote', blocks: parse_lines(lines.slice(at, end).map((l) => l.replace(kQuote, '')), depth + 1) }, end);
      continue;
    }
    if (depth < kMaxDepth && kItem.test(line)) {
      const { list, end } = parse_list(lines, at, depth);
      add(list, end);
      continue;
    }
    const align = alignments(lines[at + 1]);
    if (align && line.includes('|') && cells(line).length === align.length) {
      let end = at + 2;
      while (end < lines.length && !is_blank(lines[end]) && lines[end]!.includes('|')) end++;
      const rows = lines.slice(at + 2, end).map((l) => {
        const texts = cells(l);
        return align.map((_, i) => texts[i] ?? '');
      });
      add({ kind: 'table', head: cells(line), align, rows }, end);
      continue;
    }
    let end = at + 1;
    while (end < lines.length && !is_blank(lines[end]) && !starts_block(lines[end]!) && !alignments(lines[end + 1])) end++;
    add({ kind: 'paragraph', text: lines.slice(at, end).map((l) => l.trimStart()).join('\n') }, end);
  }
  return blocks;
}

function closes(line: string, fence: string): boolean {
  const text = line.trim();
  return text.length >= fence.length && text === fence[0]!.repeat(text.length);
}

function starts_block(line: string): boolean {
  if (kFence.test(line) || kHeading.test(line) || kRule.test(line) || kQuote.test(line)) return true;
  const item = kItem.exec(line);
  return item !== null && (!/\d/.test(item[2]!) || parseInt(item[2]!, 10) <= 99);  // a year at the start of a line is no item
}

function parse_list(lines: string[], begin: number, depth: number): { list: List; end: number } {
  const first = kItem.exec(lines[begin]!)!;
  const ordered = /\d/.test(first[2]!);
  const base = first[1]!.length;
  const list: List = { kind: 'list', ordered, start: ordered ? parseInt(first[2]!, 10) : 1, items: [] };
  let at = begin;
  while (at < lines.length) {
    const item = kItem.exec(lines[at]!);
    // Models indent by two, three or four; an item that stands at most one further right is a sibling.
    if (!item || item[1]!.length > base + 1 || item[1]!.length < base || /\d/.test(item[2]!) !== ordered || kRule.test(lines[at]!)) break;
    const content = item[1]!.length + item[2]!.length + Math.min(Math.max(item[3]!.length, 1), 4);
    const body = [item[4]!];
    at++;
    while (at < lines.length) {
      const line = lines[at]!;
      if (is_blank(line)) {
        let next = at;
        while (next < lines.length && is_blank(lines[next])) next++;
        if (next >= lines.length || indent_of(lines[next]!) < base + 2) break;
        body.push('');
        at = next;
      } else if (indent_of(line) >= base + 2 || !starts_block(line)) {
        body.push(line.slice(Math.min(content, indent_of(line))));
        at++;
      } else {
        break;
      }
    }
    list.items.push(parse_lines(body, depth + 1));
    let next = at;
    while (next < lines.length && is_blank(lines[next])) next++;
    if (next < lines.length && kItem.test(lines[next]!)) at = next;
  }
  return { list, end: at };
}

/** The alignments that a line such as `|---|:-:|` gives; null if it is none. */
function alignments(line: string | undefined): string[] | null {
  if (line === undefined || !line.includes('-') || !/^[\s|:-]+$/.test(line) || !line.includes('|')) return null;
  const parts = cells(line);
  if (parts.length > kMaxColumns || !parts.every((part) => /^:?-+:?$/.test(part))) return null;
  return parts.map((part) => (part.endsWith(':') ? (part.startsWith(':') ? 'center' : 'right') : 'left'));
}

function cells(line: string): string[] {
  const parts: string[] = [];
  let part = '';
  let in_code = false;
  for (let i = 0; i < line.length; i++) {
    const c = line[i]!;
    if (c === '`') in_code = !in_code;
    if (c === '\\' && line[i + 1] === '|') {
      part += '|';
      i++;
    } else if (c === '|' && !in_code) {
      parts.push(part.trim());
      part = '';
    } else {
      part += c;
    }
  }
  parts.push(part.trim());
  if (parts[0] === '') parts.shift();
  if (parts.length && parts[parts.length - 1] === '') parts.pop();
  return parts;
}

/** A link target that is safe to follow, or null. */
export function safe_url(text: string): string | null {
  try {
    const url = new URL(text);
    return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
  } catch {
    return null;  // relative links would lead to the server
  }
}

function link(url: string, children: Node[]): Node {
  return h('a', { href: url, target: '_blank', rel: 'noopener noreferrer' }, ...children);
}

/** Inline markdown as nodes. */
export function inline(text: string, depth = 0): Node[] {
  const nodes: Node[] = [];
  let plain = '';
  let at = 0;
  let no_link_before = 0;  // brackets that stay open up to here begin no link
  const missing = new Set<string>();  // closing delimiters that the rest does not contain, so no search is repeated
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = '';
  };
  const add = (node: Node, end: number) => {
    flush();
    nodes.push(node);
    at = end;
  };
  const find = (delimiter: string, from: number, fits: (index: number) => boolean = () => true): number => {
    if (missing.has(delimiter)) return -1;
    let index = text.indexOf(delimiter, from);
    while (index >= 0 && !fits(index)) index = text.indexOf(delimiter, index + 1);
    if (index < 0) missing.add(delimiter);
    return index;
  };
  while (at < text.length) {
    const c = text[at]!;
    if (c === '\\') {
      const next = text[at + 1] ?? '';
      const closing = next === '(' ? '\\)' : next === '[' ? '\\]' : '';
      const end = closing ? find(closing, at + 2) : -1;
      if (end >= 0) {
        add(h('code', { class: 'math' }, text.slice(at + 2, end).trim()), end + 2);
      } else if (next === '\n') {
        add(h('br'), at + 2);
      } else {
        const escaped = /[!-/:-@[-`{-~]/.test(next);
        plain += escaped ? next : c;
        at += escaped ? 2 : 1;
      }
      continue;
    }
    if (c === '\n') {
      plain = plain.trimEnd();
      add(h('br'), at + 1);
      continue;
    }
    if (c === '`') {
      const run = /^`+/.exec(text.slice(at, at + 32))![0];
      const end = find(run, at + run.length, (i) => text[i - 1] !== '`' && text[i + run.length] !== '`');
      if (end >= 0) {
        const code = text.slice(at + run.length, end).replaceAll('\n', ' ');
        add(h('code', {}, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code), end + run.length);
      } else {
        plain += run;
        at += run.length;
      }
      continue;
    }
    if (c === '$' && text[at + 1] === '$') {
      const end = find('$$', at + 2);
      if (end > at + 2) {
        add(h('code', { class: 'math' }, text.slice(at + 2, end).trim()), end + 2);
        continue;
      }
    }
    if (at >= no_link_before && (c === '[' || (c === '!' && text[at + 1] === '['))) {
      const begin = c === '!' ? at + 1 : at;
      const found = link_at(text, begin);
      if (!found && !text.slice(begin, begin + kMaxLinkText).includes(']')) no_link_before = begin + kMaxLinkText;
      const url = found && safe_url(found.url);
      if (found && url && depth < kMaxEmphasis) {
        // Pictures become links: fetching them would tell other servers about this conversation.
        add(link(url, found.text ? inline(found.text, depth + 1) : [document.createTextNode(url)]), found.end);
        continue;
      }
    }
    if (c === '<') {
      const end = text.slice(at, at + 2000).indexOf('>');
      const inside = end > 0 ? text.slice(at + 1, at + end) : '';
      const url = /^(https?:\/\/|mailto:)[^\s<]+$/.test(inside) ? safe_url(inside) : null;
      if (url) {
        add(link(url, [document.createTextNode(inside)]), at + end + 1);
        continue;
      }
      if (/^br\s*\/?$/i.test(inside)) {
        add(h('br'), at + end + 1);
        continue;
      }
    }
    if (c === 'h' && /^https?:\/\/[^\s]/.test(text.slice(at, at + 9)) && !/\w/.test(text[at - 1] ?? '')) {
      let raw = /^[^\s<>"`]+/.exec(text.slice(at, at + 2000))![0].replace(/[.,;:!?*_~'\]]+$/, '');
      if (raw.endsWith(')') && !raw.includes('(')) raw = raw.slice(0, -1);
      const url = safe_url(raw);
      if (url) {
        add(link(url, [document.createTextNode(raw)]), at + raw.length);
        continue;
      }
    }
    if ((c === '*' || c === '_' || c === '~') && depth < kMaxEmphasis) {
      const run = c.repeat(text[at + 1] !== c ? 1 : text[at + 2] !== c ? 2 : 3);
      const word = /[\p{L}\p{N}]/u;
      const opens = /\S/.test(text[at + run.length] ?? ' ') && !(c === '_' && word.test(text[at - 1] ?? ' ')) && (c !== '~' || run.length === 2);
      const end = opens
        ? find(run, at + run.length + 1, (i) => /\S/.test(text[i - 1]!) && text[i - 1] !== '\\' &&
            text[i + run.length] !== c && (run.length > 1 || text[i - 1] !== c) && !(c === '_' && word.test(text[i + run.length] ?? ' ')))
        : -1;
      if (end >= 0) {
        const children = inline(text.slice(at + run.length, end), depth + 1);
        const node = c === '~' ? h('del', {}, ...children)
          : run.length === 1 ? h('em', {}, ...children)
          : run.length === 2 ? h('strong', {}, ...children)
          : h('strong', {}, h('em', {}, ...children));
        add(node, end + run.length);
      } else {
        plain += run;
        at += run.length;
      }
      continue;
    }
    plain += c;
    at++;
  }
  flush();
  return nodes;
}

/** The link `[text](url "title")` whose bracket stands at `begin`. */
function link_at(text: string, begin: number): { text: string; url: string; end: number } | null {
  let depth = 0;
  const limit = Math.min(text.length, begin + kMaxLinkText);
  for (let i = begin; i < limit; i++) {
    if (text[i] === '\\') i++;
    else if (text[i] === '[') depth++;
    else if (text[i] === ']' && --depth === 0) {
      if (text[i + 1] !== '(') return null;
      let open = 1;
      for (let j = i + 2; j < Math.min(text.length, i + 2002); j++) {
        if (text[j] === '(') open++;
        else if (text[j] === ')' && --open === 0) {
          const url = /^\s*<?([^\s<>]+)>?(?:\s+["'(][^]*)?$/.exec(text.slice(i + 2, j));
          return url ? { text: text.slice(begin + 1, i), url: url[1]!, end: j + 1 } : null;
        }
      }
      return null;
    }
  }
  return null;
}

function code_block(block: Code): HTMLElement {
  const code = h('code', {});
  const element = h('div', { class: 'code' },
    h('div', { class: 'code-head' }, h('span', {}, block.language || 'text'), copy_button('Copy code', () => code.textContent ?? '')),
    h('pre', { tabindex: 0 }, code));
  fill_code(code, block);
  return element;
}

function fill_code(code: Element, block: Code): void {
  if (block.text.length > kHighlighted) code.textContent = block.text;
  else code.replaceChildren(...highlight(block.text, block.language));
}

function element_of(block: Block): HTMLElement {
  switch (block.kind) {
    case 'paragraph': return h('p', {}, ...inline(block.text));
    // Headings of answers rank below those of the page.
    case 'heading': return h(`h${Math.min(block.level + 2, 6)}` as 'h3', { class: `level-${block.level}` }, ...inline(block.text));
    case 'code': return code_block(block);
    case 'rule': return h('hr');
    case 'quote': return h('blockquote', {}, ...block.blocks.map(element_of));
    case 'list': return h(block.ordered ? 'ol' : 'ul', { start: block.ordered && block.start !== 1 ? block.start : null }, ...block.items.map(item_of));
    case 'table': {
      const row = (tag: 'th' | 'td', texts: string[]) =>
        h('tr', {}, ...texts.map((text, i) => h(tag, { class: `align-${block.align[i]}` }, ...inline(text))));
      return h('div', { class: 'table', tabindex: 0 },
        h('table', {}, h('thead', {}, row('th', block.head)), h('tbody', {}, ...block.rows.map((texts) => row('td', texts)))));
    }
  }
}

function item_of(blocks: Block[]): HTMLElement {
  const first = blocks[0];
  const task = first?.kind === 'paragraph' ? /^\[([ xX])\]\s+/.exec(first.text) : null;
  if (task && first?.kind === 'paragraph') {
    const box = h('input', { type: 'checkbox', disabled: true, checked: task[1] !== ' ' });
    return h('li', { class: 'task' }, box, ...inline(first.text.slice(task[0].length)), ...blocks.slice(1).map(element_of));
  }
  // The usual item is one paragraph, maybe with a list under it; without <p> it stays tight.
  if (first?.kind === 'paragraph') return h('li', {}, ...inline(first.text), ...blocks.slice(1).map(element_of));
  return h('li', {}, ...blocks.map(element_of));
}

/** Shows markdown that grows: blocks that did not change keep their elements. */
export class MarkdownView {
  readonly element = h('div', { class: 'markdown' });
  private blocks: Block[] = [];

  show(text: string): void {
    const blocks = parse(text);
    let same = 0;
    while (same < blocks.length && same < this.blocks.length && blocks[same]!.source === this.blocks[same]!.source) same++;
    const old = this.blocks[same];
    const next = blocks[same];
    // Code that grows keeps its element, and with it how far it is scrolled.
    if (old?.kind === 'code' && next?.kind === 'code' && old.language === next.language) {
      fill_code(this.element.children[same]!.querySelector('code')!, next);
      same++;
    }
    while (this.element.children.length > same) this.element.lastElementChild!.remove();
    for (const block of blocks.slice(same)) this.element.append(element_of(block));
    this.blocks = blocks;
  }
}
