// One answer of the server, streamed.

import { ApiError, ConnectionError, events, message_of, request } from './api';
import type { Finish, Stats, Token } from './store';

interface LogProb { token?: string; logprob?: number; bytes?: number[] | null; top_logprobs?: LogProb[] }
interface Chunk {
  choices?: {
    delta?: { content?: string | null; reasoning_content?: string | null };
    logprobs?: { content?: LogProb[] | null } | null;
    finish_reason?: string | null;
  }[];
  usage?: { prompt_tokens?: number; completion_tokens?: number; prompt_tokens_details?: { cached_tokens?: number } | null } | null;
  timings?: { cache_n?: number; prompt_n?: number; prompt_per_second?: number; predicted_n?: number; predicted_per_second?: number } | null;
  error?: unknown;
}

export interface Answer {
  text: string;
  reasoning: string;
  tokens: Token[];
  finish?: Finish;
  stats?: Stats;
}

/** Sends `body` and adds what arrives to `answer`, calling `changed` each time. Throws like `request`. */
export async function complete(body: Record<string, unknown>, answer: Answer, signal: AbortSignal, changed: () => void): Promise<void> {
  const response = await request('/v1/chat/completions',
    { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  const text_of_bytes = new TokenText();
  let first = 0;
  let last = 0;
  let pieces = 0;
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
    if (!choice) continue;
    const { content, reasoning_content } = choice.delta ?? {};
    if (content || reasoning_content) {
      last = performance.now();
      first ||= last;
      pieces++;
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
    changed();
  }
  if (!is_done && !answer.finish) throw new ConnectionError('The answer ended before it was complete.');
  const tokens = timings?.predicted_n ?? usage?.completion_tokens ?? pieces;
  answer.stats = {
    tokens,
    // Servers without timings: what arrived after the first piece, by our clock.
    per_second: timings?.predicted_per_second ?? (tokens > 1 && last > first ? (1000 * (tokens - 1)) / (last - first) : NaN),
    prompt: usage?.prompt_tokens ?? timings?.prompt_n ?? NaN,
    prompt_per_second: timings?.prompt_per_second ?? NaN,
    cached: timings?.cache_n ?? usage?.prompt_tokens_details?.cached_tokens ?? NaN,
  };
  answer.finish ??= 'stop';
  changed();
}

/** The text of tokens in a row. A character that several tokens share goes to the last of them. */
class TokenText {
  private readonly decoder = new TextDecoder();

  next(token: LogProb): string {
    if (!token.bytes) return token.token ?? '';
    return this.decoder.decode(new Uint8Array(token.bytes), { stream: true });
  }
}
