// Dialogs and drawers on the platform's own <dialog>: it traps the focus, closes on Escape and gives the focus back.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "../icons";
import { say } from "../toasts";

interface Props {
  title: string;
  onClose: () => void;
  drawer?: boolean;
  wide?: boolean;
  children: ComponentChildren;
  footer?: ComponentChildren;
}

export function Dialog({ title, onClose, drawer, wide, children, footer }: Props): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const shown = box.current;
    shown?.showModal();
    return () => shown?.close();
  }, []);
  return (
    <dialog
      ref={box}
      class={`${drawer ? "drawer" : "dialog"} ${wide ? "wide" : ""}`}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      <div class="dialog-body">
        <header>
          <h2>{title}</h2>
          <button type="button" class="ghost square" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        </header>
        <div class="dialog-content">{children}</div>
        {footer && <footer>{footer}</footer>}
      </div>
    </dialog>
  );
}

/** What is about to be done, in a sentence that says how much it touches. */
export interface Question {
  title: string;
  text: ComponentChildren;
  verb: string;
  danger?: boolean;
  act: () => Promise<string | void>;
}

const asked = signal<Question | null>(null);

export function confirm(question: Question): void {
  asked.value = question;
}

export function Confirm(): JSX.Element | null {
  const question = asked.value;
  return question && <Ask key={question.title} question={question} />;
}

function Ask({ question }: { question: Question }): JSX.Element {
  const [busy, set] = useState(false);
  const close = () => {
    asked.value = null;
  };
  const act = async () => {
    set(true);
    try {
      const said = await question.act();
      if (said) say("good", said);
      close();
    } catch (error) {
      say("bad", `${question.verb}: it did not work`, (error as Error).message);
      close();
    }
  };
  return (
    <Dialog
      title={question.title}
      onClose={close}
      footer={
        <>
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="button" class={question.danger ? "danger" : "primary"} disabled={busy} onClick={() => void act()}>
            {question.verb}
          </button>
        </>
      }
    >
      <div class="prose">{question.text}</div>
    </Dialog>
  );
}
