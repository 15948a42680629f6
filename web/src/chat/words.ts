/** Every word of the chat page, once in Chinese and once in English: [zh, en]. {0} is filled in. */
import type { Lang } from "../select";

const words = {
  "language": ["English", "中文"],
  "language.about": ["Switch to English", "换成中文"],
  "model": ["模型", "Model"],
  "new": ["新对话", "New chat"],
  "options": ["选项", "Options"],
  "temperature": ["温度（0 取最可能的）", "Temperature (0 takes the likeliest)"],
  "length": ["最多写几个词元", "Most tokens to write"],
  "system": ["系统提示（可不填）", "System prompt (optional)"],
  "send": ["发送", "Send"],
  "write": ["续写", "Continue"],
  "translate": ["翻译", "Translate"],
  "stop": ["停止", "Stop"],
  "copy": ["复制", "Copy"],
  "copied": ["已复制", "Copied"],
  "edit": ["修改", "Edit"],
  "again": ["重新生成", "Again"],
  "you": ["你", "You"],
  "hint.chat": ["说点什么…", "Say something…"],
  "hint.text": ["写一个开头，模型接着写…", "Write a beginning, and the model goes on…"],
  "hint.translate": ["要翻译的文字，一行一句…", "Text to translate, a sentence a line…"],
  "begin.chat": ["和模型聊天。点答案里的任何一个词，看看模型为什么这样说。", "Chat with the model. Click any word of an answer to see why the model said it."],
  "begin.text": ["这个模型没有对话模板：它接着你的开头写。点任何一个词，看看它为什么这样写。", "This model has no chat template: it goes on from your beginning. Click any word to see why it wrote that."],
  "begin.translate": ["译文里的每个词都可以点：看看它从原文的哪个词来。", "Every word of a translation can be clicked: see which words it came from."],
  "inside": ["看这个词的内部", "Look inside this word"],
  "waiting": ["正在等…", "Waiting…"],
  "length.end": ["到了长度上限，停在这里", "stopped at the length limit"],
  "lost": ["连不上服务器：运行 qkv serve 的终端还开着吗？", "The server does not answer: is the terminal with qkv serve still open?"],
  "none": ["这里没有能写字的模型；向量请用 /v1/embeddings。", "No model here writes text; for vectors use /v1/embeddings."],
  "key": ["API 密钥", "API key"],
  "key.about": ["这个服务器要密钥。", "This server needs a key."],
  "enter": ["进入", "Enter"],
} as const;

export type Word = keyof typeof words;

/** A word of the page in a language. */
export function say(lang: Lang, word: Word, fill = ""): string {
  return words[word][lang === "zh" ? 0 : 1].replace("{0}", fill);
}
