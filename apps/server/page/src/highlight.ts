// Colours for code: comments, strings, numbers and common keywords. Enough to read by, without a grammar per language.

import { h } from './dom';

const kWords = new Set((
  'abstract and as assert async await auto begin bool boolean break byte case catch char class const constexpr continue def default del delete do ' +
  'double elif else end enum except export extends extern false False final finally float fn for foreach from func function global goto if impl ' +
  'implements import in include inline instanceof int interface is lambda let local long loop match mod module mut namespace new nil None not null ' +
  'nullptr of operator or override package pass private protected pub public raise return self short signed sizeof static std string struct super ' +
  'switch template then this throw trait true True try type typedef typename union unsigned use using var virtual void volatile when where while ' +
  'with yield SELECT FROM WHERE JOIN LEFT INNER ON GROUP ORDER BY INSERT INTO VALUES UPDATE SET DELETE CREATE TABLE AND OR NOT NULL LIMIT AS ' +
  'select from where join group order insert into values update set create table limit echo fi done esac').split(' '));

const kHash = /^(py|python|sh|bash|shell|zsh|console|rb|ruby|yaml|yml|toml|r|perl|make|makefile|cmake|dockerfile|ini|elixir|julia)$/;
const kDash = /^(sql|lua|haskell|hs|ada|vhdl)$/;
const kNone = /^(|text|txt|plain|plaintext|output|markdown|md|log|diff)$/;

const kStrings = /"(?:\\[^]|[^"\\\n])*"?|'(?:\\[^]|[^'\\\n])*'?|`(?:\\[^]|[^`\\])*`?/y;
const kNumber = /(?:0[xXbB][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*/y;
const kName = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const kOther = /[^\p{L}\p{N}_$"'`#/-]+/uy;

export function highlight(text: string, language: string): Node[] {
  const name = language.toLowerCase();
  if (kNone.test(name)) return [document.createTextNode(text)];
  const comment = kHash.test(name) ? /#.*/y : kDash.test(name) ? /--.*/y
    : /^(html|xml|svg)$/.test(name) ? /<!--[^]*?(?:-->|$)/y : name === 'json' ? null : /\/\/.*|\/\*[^]*?(?:\*\/|$)|^#.*/my;
  const nodes: Node[] = [];
  let plain = '';
  let at = 0;
  const take = (pattern: RegExp): string => {
    pattern.lastIndex = at;
    return pattern.exec(text)?.[0] ?? '';
  };
  const add = (kind: string, piece: string) => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = '';
    nodes.push(h('span', { class: `code-${kind}` }, piece));
    at += piece.length;
  };
  while (at < text.length) {
    let piece = comment ? take(comment) : '';
    if (piece) {
      add('comment', piece);
      continue;
    }
    if ((piece = take(kStrings))) {
      add('string', piece);
    } else if ((piece = take(kName))) {
      if (kWords.has(piece)) {
        add('keyword', piece);
      } else {
        const is_call = text[at + piece.length] === '(';
        if (is_call) {
          add('call', piece);
        } else {
          plain += piece;
          at += piece.length;
        }
      }
    } else if ((piece = take(kNumber))) {
      add('number', piece);
    } else {
      piece = take(kOther) || text[at]!;
      plain += piece;
      at += piece.length;
    }
  }
  if (plain) nodes.push(document.createTextNode(plain));
  return nodes;
}
