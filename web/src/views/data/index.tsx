import { Page } from "../../ui/page";

export default function View() {
  return <Page title="data">{null}</Page>;
}
