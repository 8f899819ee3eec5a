/** Just enough of TypeScript's grammar for the gates: code without its comments, and the imports. */

/** One `import`, `export … from` or `import()`. */
export interface Import {
  readonly specifier: string;
  /** It leaves no trace at run time. */
  readonly typeOnly: boolean;
  readonly line: number;
}

// What a slash can follow and begin a regular expression rather than divide.
const BEFORE_REGEXP =
  /(?:^|[([{}=,;:!&|?+\-*%~^<>]|\b(?:return|typeof|case|in|of|do|else|void|delete|throw|new|await|yield))\s*$/;

/** The text with every comment replaced by spaces; lines stay where they are. */
export function withoutComments(text: string): string {
  let code = "";
  const templates: number[] = []; // for each open `${`, the depth of braces inside it
  let at = 0;
  const take = (end: number) => {
    code += text.slice(at, end);
    at = end;
  };
  const blank = (end: number) => {
    code += text.slice(at, end).replace(/[^\n]/g, " ");
    at = end;
  };
  /** The place behind the closing character of the string, template part or regular expression that begins at `at`. */
  const endOf = (closing: RegExp) => {
    closing.lastIndex = at + 1;
    const found = closing.exec(text);
    return found === null ? text.length : found.index + found[0].length;
  };
  const template = () => {
    take(endOf(/(?<=(?:^|[^\\])(?:\\\\)*)(?:`|\$\{)/g));
    if (code.endsWith("${")) templates.push(0);
  };
  while (at < text.length) {
    const character = text[at];
    if (text.startsWith("//", at)) blank(endOf(/(?=\n)/g));
    else if (text.startsWith("/*", at)) blank(endOf(/(?<=\/\*[^]*)\*\//g));
    else if (character === '"' || character === "'") {
      take(endOf(character === '"' ? /(?:\\[^]|[^"\\])*"/gy : /(?:\\[^]|[^'\\])*'/gy));
    } else if (character === "`") template();
    else if (character === "/" && BEFORE_REGEXP.test(code.slice(-20))) {
      take(endOf(/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\[\n])+\/\w*/gy));
    } else if (character === "}" && templates.at(-1) === 0) {
      templates.pop();
      template();
    } else {
      if (templates.length > 0 && character === "{") templates[templates.length - 1]++;
      if (templates.length > 0 && character === "}") templates[templates.length - 1]--;
      take(at + 1);
    }
  }
  return code;
}

/** Every import of a file whose comments are gone. */
export function importsOf(code: string): Import[] {
  const found: Import[] = [];
  const statement =
    /^[ \t]*(?:import|export)\b(?:\s+(type)\b(?!\s*(?:,|from\b)))?(?:([^"'`;=()]*?)\bfrom|(?<=import))\s*(["'])([^"'\n]+)\3/gm;
  for (const match of code.matchAll(statement)) {
    const names = match[2]?.match(/^\s*\{([^}]*)\}\s*$/)?.[1].split(",").map((name) => name.trim()).filter((name) => name !== "");
    const typeOnly = match[1] !== undefined ||
      (names !== undefined && names.length > 0 && names.every((name) => name.startsWith("type ")));
    found.push({ specifier: match[4], typeOnly, line: lineAt(code, match.index) });
  }
  for (const match of code.matchAll(/\bimport\s*\(\s*(["'`])([^"'`\n]+)\1/g)) {
    found.push({ specifier: match[2], typeOnly: false, line: lineAt(code, match.index) });
  }
  return found;
}

/** The line, from 1, of a place in a text. */
export function lineAt(text: string, index: number): number {
  return text.slice(0, index).split("\n").length;
}
