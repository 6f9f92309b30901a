/** The whole of one log line. */
import type { LogEntry } from "../../api/types";
import { moment } from "../../lib/format";
import { cut, visible } from "../../lib/text";
import { moveCursor } from "../../state/cluster";
import { hrefTo } from "../../state/url";
import { Button, Fact } from "../../ui/controls";
import { CopyButton } from "../../ui/copy";
import { Drawer } from "../../ui/drawer";
import { Mark } from "../../ui/state-mark";
import { download } from "./download";

const WHOLE_CHARS = 20_000;

export function LogDrawer({ entry, close }: { entry: LogEntry; close: () => void }) {
  const { head, hidden } = cut(entry.message, WHOLE_CHARS);
  return (
    <Drawer title={moment(entry.timestamp, true)} close={close}>
      <dl className="grid grid-cols-2 gap-4">
        <Fact name="Level"><Mark state={entry.level} /></Fact>
        <Fact name="Source">{entry.source}{entry.stream && ` · ${entry.stream}`}</Fact>
        <Fact name="Task">{entry.task_id ? <a className="hover:underline" href={hrefTo(["tasks", entry.task_id])}>{entry.task_id}</a> : "–"}</Fact>
        <Fact name="Worker">{entry.worker_id ? <a className="hover:underline" href={hrefTo(["workers", entry.worker_id])}>{entry.worker_id}</a> : "–"}</Fact>
      </dl>
      <div className="my-4 flex gap-2">
        <CopyButton label="Copy" text={() => entry.message} />
        <Button onClick={() => download(`${entry.id}.txt`, entry.message)}>Download</Button>
        <Button onClick={() => moveCursor(entry.timestamp, "push")}>Show this moment</Button>
      </div>
      <pre className="font-mono text-s break-words whitespace-pre-wrap">{visible(head)}</pre>
      {hidden > 0 && <p className="mt-2 text-faint">{hidden.toLocaleString("en-GB")} more characters are in the download.</p>}
    </Drawer>
  );
}
