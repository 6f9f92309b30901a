/** The title of the document: the item, the view and the product. */
import { useEffect } from "react";
import { usePlace, type Place } from "../state/url";
import { VIEWS } from "./views";

export function titleOf({ path }: Place): string {
  const [name = "overview", id = ""] = path;
  const item = name === "tasks" && id === "new" ? "Submit" : id;
  const view = VIEWS.find((each) => each.name === name)?.title ?? "";
  return [item, view, "Strata"].filter(Boolean).join(" · ");
}

export function useDocumentTitle(): void {
  const title = titleOf(usePlace());
  useEffect(() => {
    document.title = title;
  }, [title]);
}
