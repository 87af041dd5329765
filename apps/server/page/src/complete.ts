// One answer of the server, streamed.

import { ApiError, ConnectionError, events, message_of, meta_of, request } from './api';
import { settings } from './settings';
import type { Finish, Stats, Token } from './store';

const kPlainTokens = 256;  // models that only continue a text seldom end it

export interface Prompt {
  model: string;
  messages: { role: string; content: string }[];
  sampling: Record<string, unknown>;
  alternatives?: number;  // likeliest tokens to tell for each token; none: no probabilities
}

interface LogProb { token?: string; logprob?: number; bytes?: number[] | null; top_logprobs?: LogProb[] }
interface Chunk {
  choices?: {
    text?: string;  // of plain completions, instead of a delta
    delta?: { content?: string | null; reasoning_content?: string | null };
    logprobs?: { content?: LogProb[] | null } | null;
    finish_reason?: string | null;
  }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number; prompt_tokens_details?: { cached_tokens?: number } | null } | null;
  timings?: { cache_n?: number; prompt_n?: number; prompt_per_second?: number; predicted_n?: number; predicted_per_second?: number } | null;
  prompt_progress?: { total?: number; processed?: number } | null;
  error?: unknown;
}

export interface Answer {
  text: string;
  reasoning: string;
  tokens: Token[];
  finish?: Finish;
  stats?: Stats;
}

/** How far an answer under way has come, by our clock. */
export interface Progress {
  prompt_done: number;  // 0: unknown
  prompt_total: number;
  tokens: number;
  per_second: number;
}

/** Whether prompts to this model are texts to continue, not conversations. */
export function continues_text(model: string): boolean {
  const { format } = settings.get();
  return format === 'auto' ? meta_of(model)?.chat === false : format === 'text';
}

/** The path and the body that ask for the answer. An answer at the end of the messages is continued. */
export function request_of({ model, messages, sampling, alternatives }: Prompt): [path: string, body: Record<string, unknown>] {
  const body = { model, ...sampling, stream: true, stream_options: { include_usage: true }, return_progress: true };
  if (continues_text(model)) {
    let prompt = '';
    for (const { role, content } of messages) {
      if (role === 'system') continue;
      // Answers continue what stands before them; what the user writes begins a paragraph.
      prompt += (role === 'user' && prompt !== '' && !prompt.endsWith('\n') ? '\n\n' : '') + content;
    }
    return ['/v1/completions', { max_tokens: kPlainTokens, ...body, prompt, ...(alternatives ? { logprobs: alternatives } : {}) }];
  }
  return ['/v1/chat/completions', {
    ...body, messages, ...(alternatives ? { logprobs: true, top_logprobs: alternatives } : {}),
    ...(messages[messages.length - 1]?.role === 'assistant' ? { continue_final_message: true } : {}),
  }];
}

/** Asks for an answer and adds what arrives to `answer`, calling `changed` each time. Throws like `request`. */
export async function complete(prompt: Prompt, answer: Answer, signal: AbortSignal, changed: (progress: Progress) => void): Promise<void> {
  const [path, body] = request_of(prompt);
  const response = await request(path, body, signal);
  const progress: Progress = { prompt_done: 0, prompt_total: 0, tokens: 0, per_second: NaN };
  const text_of_bytes = new TokenText();
  let first = 0;
  let last = 0;
  let is_done = false;
  let chunk: Chunk = {};
  let usage: Chunk['usage'];
  let timings: Chunk['timings'];
  for await (const data of events(response, signal)) {
    if (data === '[DONE]') {
      is_done = true;
      break;
    }
    try {
      chunk = JSON.parse(data) as Chunk;
    } catch {
      throw new ApiError('The server sent an event that is not JSON.', 200);
    }
    if (chunk.error) throw new ApiError(message_of(chunk), 200);
    usage = chunk.usage ?? usage;
    timings = chunk.timings ?? timings;
    const choice = chunk.choices?.[0];
    if (!choice) {
      if (chunk.prompt_progress) {
        progress.prompt_done = chunk.prompt_progress.processed ?? 0;
        progress.prompt_total = chunk.prompt_progress.total ?? 0;
        changed(progress);
      }
      continue;
    }
    const content = choice.delta?.content ?? choice.text;
    const reasoning_content = choice.delta?.reasoning_content;
    if (content || reasoning_content) {
      last = performance.now();
      first ||= last;
      progress.tokens++;
      if (last > first) progress.per_second = (1000 * (progress.tokens - 1)) / (last - first);
    }
    if (reasoning_content) answer.reasoning += reasoning_content;
    if (content) answer.text += content;
    if (!reasoning_content) {
      for (const token of choice.logprobs?.content ?? []) {
        const text = text_of_bytes.next(token);
        answer.tokens.push({ text, logprob: token.logprob ?? 0, top: (token.top_logprobs ?? []).map((t) => [t.token ?? '', t.logprob ?? -99]) });
      }
    }
    if (choice.finish_reason) answer.finish = choice.finish_reason === 'length' ? 'length' : 'stop';
    changed(progress);
  }
  if (!is_done && !answer.finish) throw new ConnectionError('The answer ended before it was complete.');
  const tokens = timings?.predicted_n ?? usage?.completion_tokens ?? progress.tokens;
  answer.stats = {
    tokens,
    per_second: timings?.predicted_per_second || progress.per_second,
    prompt: usage?.prompt_tokens ?? timings?.prompt_n ?? NaN,
    prompt_per_second: timings?.prompt_per_second ?? NaN,
    cached: timings?.cache_n ?? usage?.prompt_tokens_details?.cached_tokens ?? NaN,
  };
  answer.finish ??= 'stop';
  changed(progress);
}

/** The text of tokens in a row. A character that several tokens share goes to the last of them. */
class TokenText {
  private readonly decoder = new TextDecoder();

  next(token: LogProb): string {
    if (!token.bytes) return token.token ?? '';
    return this.decoder.decode(new Uint8Array(token.bytes), { stream: true });
  }
}
